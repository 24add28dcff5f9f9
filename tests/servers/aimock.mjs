// aimock on a free port of this machine; prints its address. Some faults it has not: headers of a request ask for them.
//   x-fault-header: NAME=VALUE   the response has this header too
//   x-fault-garble: N            the N-th chunk of the stream loses its closing brackets
//   x-fault-reset: N             the connection is reset in place of the N-th chunk; 0: in place of the response
import { createServer } from "@copilotkit/aimock";

const { server, url } = await createServer([], { port: 0, logLevel: "silent" });

server.prependListener("request", (request, response) => {
  const { "x-fault-header": header, "x-fault-garble": garble, "x-fault-reset": reset } = request.headers;
  if (header) response.setHeader(...header.split("=", 2));
  if (reset === "0") request.socket.resetAndDestroy();
  if (!garble && !reset) return;
  const write = response.write;
  let chunk = 0;
  response.write = (text) => {
    chunk += 1;
    if (chunk === Number(reset)) return request.socket.resetAndDestroy();
    return write.call(response, chunk === Number(garble) ? text.replace(/[\]}]+\s*$/, "\n\n") : text);
  };
});

console.log(url);
