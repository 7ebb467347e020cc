#!/usr/bin/env bash
# The one entry point to the tests: what a person types, and what CI runs.
set -uo pipefail

usage() {
	cat <<'TEXT'
contrib/run_tests.sh [OPTION…] [STAGE…]

Stages (without one: unit mpi)
  lint    gofmt, go vet, staticcheck, shellcheck
  unit    all Go tests; where there is no MPI, those that do without
  race    the same under the race detector
  mpi     the programs, two ranks each, under mpirun
  all     lint unit race mpi

Options
  --setup            install first what the stages need and this machine lacks, and change nothing else:
                     Open MPI and its headers, gcc, and shellcheck for lint, from apt
  --driver NAME      auto (the default: the GPU where there is one), softgpu or libcuda; for the programs
  --np N             ranks of each program, an even number; default 2
  --run REGEX        only the programs' cases whose name matches
  --prebuilt DIR     needs no Go: programs from DIR/bin, and tests compiled by go test -c from
                     DIR/test, where cuda-softgpu.test is that of package cuda/softgpu

Environment
  GPURMA_REQUIRE_GPU=1   a skip for want of a GPU is a failure
  GPURMA_SCALE=0.1       how many rounds of the tests that repeat themselves; 1 is all
  GPURMA_TIME_LIMIT=900  seconds for each program
  MPIRUN, MPICC          the launcher and the compiler wrapper of the MPI to use

The last line is "N passed, N failed, N skipped". Exit status: 0 all passed, 1 something failed,
2 wrong usage, 3 MPI could not start programs or the GPU is in use, 77 nothing could run.
TEXT
}

from=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 2
cd "$root" || exit 2
. contrib/lib/report.sh
. contrib/lib/setup.sh
. contrib/lib/mpi.sh
. contrib/lib/programs.sh
. contrib/lib/gotest.sh

die_usage() {
	echo "run_tests.sh: $1 (--help tells more)" >&2
	exit 2
}

want_setup=no driver=auto np=2 run='' prebuilt='' stages=()
while [ $# -gt 0 ]; do
	case $1 in
	--help | -h) usage && exit 0 ;;
	--setup) want_setup=yes ;;
	--driver | --np | --run | --prebuilt)
		[ $# -gt 1 ] || die_usage "$1 needs a value"
		case $1 in
		--driver) driver=$2 ;;
		--np) np=$2 ;;
		--run) run=$2 ;;
		--prebuilt) prebuilt=$2 ;;
		esac
		shift
		;;
	--*=*) # --np=4 as --np 4
		set -- "${1%%=*}" "${1#*=}" "${@:2}"
		continue
		;;
	lint | unit | race | mpi) stages+=("$1") ;;
	all) stages+=(lint unit race mpi) ;;
	*) die_usage "found $1, need a stage or an option" ;;
	esac
	shift
done
[ ${#stages[@]} -gt 0 ] || stages=(unit mpi)
case $driver in auto | softgpu | libcuda) ;; *) die_usage "--driver $driver: need auto, softgpu or libcuda" ;; esac
case $np in '' | *[!0-9]*) die_usage "--np $np: need a number" ;; esac
if [ "$np" -lt 2 ] || [ $((np % 2)) -ne 0 ]; then
	die_usage "--np $np: need an even number of ranks"
fi
limit=${GPURMA_TIME_LIMIT:-900}
case $limit in '' | *[!0-9]*) die_usage "GPURMA_TIME_LIMIT=$limit: need seconds" ;; esac
if [ -n "$prebuilt" ]; then
	case $prebuilt in /*) ;; *) prebuilt=$from/$prebuilt ;; esac
	[ -d "$prebuilt/bin" ] || die_usage "--prebuilt $prebuilt: found no folder $prebuilt/bin"
	case " ${stages[*]} " in *' lint '* | *' race '*) die_usage "--prebuilt: lint and race need the Go tool" ;; esac
else
	command -v go >/dev/null || die_usage "found no go on the PATH: install Go, or use --prebuilt"
fi

logs=$(mktemp -d "${TMPDIR:-/tmp}/gpurma-tests.XXXXXX") || exit 2
trap 'rm -rf "$logs"' EXIT
trap 'stop 130' INT
trap 'stop 143' TERM

[ $want_setup = no ] || setup "${stages[@]}" || exit 3
for stage in "${stages[@]}"; do
	began=$SECONDS
	"stage_$stage"
	printf '# stage %s: %d s\n' "$stage" $((SECONDS - began))
done
finish
