# Sourced with GIVEN_PYTHON: sets COMMAND to what runs Python here, and goes to the repository's root. That is the
# interpreter that was given, which has everything, with this checkout on its path; else the virtual environment's.
if [ -n "$GIVEN_PYTHON" ]; then
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
  read -ra COMMAND <<< "$GIVEN_PYTHON"
else
  source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
  COMMAND=(python)
fi
