# Sourced: `start_group COMMAND...` and `stop_group` run what must not outlive the script.

GROUP=""

start_group() { # COMMAND...: in a process group of its own, GROUP, that answers to signals as in a terminal,
  # also where this script was started with some of them ignored (nohup, a background job of another script)
  set -m
  env --default-signal=HUP,INT,TERM "$@" < /dev/null &
  GROUP=$!
  set +m
}

stop_group() { # all of the group, at the latest after 20 seconds
  local i
  [ -n "$GROUP" ] || return 0
  kill -TERM -- "-$GROUP" 2> /dev/null || true
  for ((i = 0; i < 200; i++)); do
    kill -0 -- "-$GROUP" 2> /dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$GROUP" 2> /dev/null || true
  wait "$GROUP" 2> /dev/null || true
  GROUP=""
}
