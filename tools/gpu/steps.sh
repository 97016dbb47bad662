# For the bash scripts beside this: their options, and steps with a log, a timeout and an exit code each, in a budget that all of
# them share. Before it is sourced: only (the parts that there are), budget (seconds), and kernel where one variant is meant. It
# reads the script's own arguments and sets root, build, greenfast and out, a folder that is there.
script=$(basename "$0")
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${GREENFAST_BUILD:-$root/build/release}
out=$script-$(date +%Y%m%d-%H%M%S)
parts=$only
while [ $# -gt 0 ]; do
  case $1 in
    --only | --out | --budget)
      [ $# -ge 2 ] || { echo "$script: $1 wants a value" >&2; exit 2; }
      case $1 in --only) only=$2 ;; --out) out=$2 ;; *) budget=$2 ;; esac
      shift 2 ;;
    --help) awk 'NR > 1 { if (!/^#/) exit; print }' "$0"; exit 0 ;;
    *) awk 'NR > 1 { if (!/^#/) exit; print }' "$0" >&2; exit 2 ;;
  esac
done
[[ $budget =~ ^[0-9]+$ ]] || { echo "$script: --budget $budget: whole seconds are expected" >&2; exit 2; }
for part in ${only//,/ }; do
  # Else nothing would run, and that would end with 0.
  case ,$parts, in *,"$part",*) ;; *) echo "$script: --only $part: there are $parts" >&2; exit 2 ;; esac
done
greenfast=$build/bin/greenfast
[ -x "$greenfast" ] || { echo "$script: $greenfast is missing" >&2; exit 3; }
if [ -n "${kernel:-}" ]; then
  # Variants that are not built are listed as well.
  listed=$("$greenfast" list)
  grep -Eq "^$kernel +[^ ]+ +(automatically|by name) +yes " <<<"$listed" || {
    echo "$script: this build has no $kernel; configure with -DGREENFAST_CUDA=on and 90a among GREENFAST_CUDA_ARCHS" >&2
    exit 3
  }
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)

steps=() left_out=() child=
want() { case ,$only, in *,"$1",*) true ;; *) false ;; esac; }

# run_step SECONDS NAME COMMAND...: into OUT/NAME.log, its last lines are shown; returns the command's exit code. 124: it took more
# than SECONDS; 125: it was not begun because fewer than 5 s of the budget were left, or was cut short by it.
run_step() {
  local seconds=$1 name=$2 code=0 begin=$SECONDS left=$((budget - SECONDS)) cut=
  shift 2
  if [ "$left" -lt 5 ]; then
    left_out+=("$name")
    echo "== $name: left out, $((left > 0 ? left : 0)) s of the budget are left"
    return 125
  fi
  if [ "$seconds" -gt "$left" ]; then seconds=$left cut=yes; fi
  echo "== $name (at most $seconds s): $*"
  # Beside this shell, which then hears of signals at once; timeout(1) hands on what it is sent.
  timeout --kill-after=5 "$seconds" "$@" >"$out/$name.log" 2>&1 </dev/null &
  child=$!
  wait "$child" || code=$?
  child=
  # What ignored SIGTERM was killed.
  if [ "$code" = 137 ] && [ $((SECONDS - begin)) -ge "$seconds" ]; then code=124; fi
  if [ "$code" = 124 ] && [ -n "$cut" ]; then
    code=125
    left_out+=("$name (cut short)")
  fi
  tail -n 25 "$out/$name.log"
  echo "== $name: exit $code after $((SECONDS - begin)) s"
  steps+=("$(printf '%-24s exit %-4s %5d s' "$name" "$code" $((SECONDS - begin)))")
  return "$code"
}

# A step of correctness: the first that fails ends the run, for what follows would measure a wrong kernel.
# 3: everything was skipped, which is no answer, but no fault of the kernel either.
step() {
  local code=0
  run_step "$@" || code=$?
  case $code in 0 | 3 | 125) ;; *) exit "$code" ;; esac
}

# A step of which others do not depend: the first failure is kept for the end.
failed=0
timing() {
  local code=0
  run_step "$@" || code=$?
  case $code in 0 | 3 | 125) ;; *) [ "$failed" != 0 ] || failed=$code ;; esac
}

steps_table() {
  local code=$?
  echo "== $script: seconds by step"
  [ ${#steps[@]} = 0 ] || printf '%s\n' "${steps[@]}"
  [ ${#left_out[@]} = 0 ] || echo "left out, the budget of $budget s is spent: ${left_out[*]}"
  [ "$code" != 0 ] || code=$failed
  # What was asked for and not begun is no success.
  [ "$code" != 0 ] || [ ${#left_out[@]} = 0 ] || code=125
  exit "$code"
}
trap steps_table EXIT
trap '[ -z "$child" ] || { kill -TERM "$child"; wait "$child"; }; exit 130' INT TERM
