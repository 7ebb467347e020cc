# shellcheck shell=bash
# Stage mpi: the programs under mpirun.

# program_names lists the programs of the repository.
program_names() {
	local main
	for main in mpitests/*/main.go; do
		basename "$(dirname "$main")"
	done
}

stage_mpi() {
	local bin name any=no
	find_launch || return
	printf '# launcher: %s\n' "$launch_note"
	preflight || return
	gpu_is_free || return
	if [ -n "$prebuilt" ]; then
		bin=$prebuilt/bin
	else
		bin=bin
		build_programs || return
	fi
	GPURMA_LAUNCH=$(words "${launch[@]}")
	export GPURMA_LAUNCH
	for name in $(program_names); do
		[ -x "$bin/$name" ] || { fail "FAIL  $name: found no $bin/$name" && continue; }
		one_mpi "$bin/$name" || return
		if [ -n "$run" ] && [ -z "$("$bin/$name" --list --run "$run" 2>/dev/null)" ]; then
			printf '# %s: no case matches --run %s\n' "$name" "$run"
			continue
		fi
		any=yes
		run_program "$name" "$bin/$name"
	done
	[ $any = yes ] || fail "FAIL  no program has a case that matches --run $run"
}

harness=github.com/gpurma/gpurma/mpitests/internal/harness

# commit names what is built, for the head of the programs' output.
commit() {
	local hash
	hash=$(git rev-parse --short=12 HEAD 2>/dev/null) || hash=unknown
	[ -z "$(git status --porcelain 2>/dev/null)" ] || hash+=+changes
	printf '%s' "$hash"
}

# build_programs puts them into bin, each in one step: another run may be using the old ones.
build_programs() {
	local fresh
	if ! mpi_flags; then
		launch_failed "found no ${MPICC:-mpicc} that tells its flags (--showme)" \
			'contrib/run_tests.sh --setup installs the headers of Open MPI; MPICC names another compiler wrapper'
		return 1
	fi
	mkdir -p bin && fresh=$(mktemp -d bin/.fresh.XXXXXX) || return 1
	# shellcheck disable=SC2046
	if ! go build -buildvcs=false -ldflags "-X $harness.commit=$(commit)" -o "$fresh/" $(program_names | sed 's,^,./mpitests/,') 2>"$logs/build"; then
		rm -rf "$fresh"
		cat "$logs/build"
		fail 'FAIL  go build: see its messages above' '  again: go build ./mpitests/...'
		return 1
	fi
	mv -f "$fresh"/* bin/ && rmdir "$fresh"
}

# gpu_is_free refuses a GPU that other processes compute on: the programs
# compare free memory, and their load is nobody's business elsewhere.
gpu_is_free() {
	local users used line
	[ "$driver" != softgpu ] || return 0
	if [ "$driver" = auto ] && ! compgen -G "${GPURMA_DEV_ROOT:-/dev}/nvidia*" >/dev/null; then
		return 0
	fi
	if ! command -v nvidia-smi >/dev/null; then
		echo '# no nvidia-smi: cannot see whether somebody else uses the GPU'
		return 0
	fi
	if ! users=$(nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader 2>&1); then
		printf '# nvidia-smi cannot tell who uses the GPU: %s\n' "$(head -n 2 <<<"$users" | tr '\n' ' ')"
		return 0
	fi
	users=$(grep -E '^[0-9]+,' <<<"$users")
	if [ -n "$users" ]; then
		refuse "REFUSED: the GPU is in use (pid, process, memory): $(tr '\n' ';' <<<"$users")" \
			'  remedy: wait for these processes, hide that GPU with CUDA_VISIBLE_DEVICES, or use --driver softgpu'
		return 1
	fi
	# Processes of other containers are not listed, but their memory is.
	while read -r line; do
		used=${line##*, }
		if [[ $used =~ ^[0-9]+$ ]] && [ "$used" -gt 2048 ]; then
			refuse "REFUSED: $used MiB of GPU ${line%%,*} are in use by processes that this one cannot see" \
				'  remedy: wait until it is free, or use --driver softgpu'
			return 1
		fi
	done < <(nvidia-smi --query-gpu=index,memory.used --format=csv,noheader,nounits 2>/dev/null)
	return 0
}

job='' # what stop has to end

# interruptible LOG COMMAND… runs a command that this script ends when it is
# ended itself: a foreground command would keep the signal waiting.
interruptible() {
	local log=$1 shown status
	shift
	mkfifo "$log.pipe" || return 1
	tee "$log" <"$log.pipe" &
	shown=$!
	"$@" >"$log.pipe" 2>&1 </dev/null &
	job=$!
	wait "$job"
	status=$?
	job=''
	wait "$shown"
	return $status
}

# stop STATUS ends the job, if one runs, and this script.
stop() {
	if [ -n "$job" ]; then
		kill -TERM "$job" && wait "$job"
	fi
	exit "$1"
}

# run_program NAME FILE runs all cases: in one job, or, when a rank crashes, the
# ones behind the crash in another.
run_program() {
	local name=$1 file=$2 part=0 after='' seed='' log progress args status skips=''
	while :; do
		part=$((part + 1))
		log=$logs/$name.$part progress=$logs/$name.$part.progress
		args=(--driver "$driver")
		[ -z "$run" ] || args+=(--run "$run")
		[ -z "$seed" ] || args+=(--seed "$seed")
		[ -z "$after" ] || args+=(--after "$after")
		: >"$progress"
		printf '# %s\n' "$(words "${launch[@]}" "$file" "${args[@]}")"
		# At the limit the ranks print their goroutines, and a while later all end.
		interruptible "$log" timeout -k 10 -s TERM $((limit + 10)) timeout -s USR1 "$limit" \
			"${launch[@]}" "$file" "${args[@]}" --progress "$progress"
		status=$?
		seed=$(sed -n "s/^# $name, .* seed \\([0-9]*\\)\$/\\1/p" "$log" | head -n 1)
		crashed=''
		judge_program "$name" "$file" "$status" "$log" "$progress"
		skips+=$(sed -n 's/^end SKIP //p' "$progress")
		if [ -z "$crashed" ]; then
			expected_skips "$name" "$log" "$skips"
			return
		fi
		skips+=${skips:+$'\n'}
		after=$crashed
		if [ $part -ge 20 ]; then
			fail "FAIL  $name: crashed $part times; the cases behind $after were not run"
			return
		fi
		local listed=(--list --after "$after")
		[ -z "$run" ] || listed+=(--run "$run")
		[ -n "$("$file" "${listed[@]}" 2>/dev/null)" ] || return
		printf '# %s goes on behind %s\n' "$name" "$after"
	done
}

# expected_skips NAME LOG SKIPPED: exactly the listed cases are skipped on the
# emulator, and on a GPU none but those listed for one, so that no case can leave
# the suite that way unseen.
expected_skips() {
	local name=$1 log=$2 skipped_cases=$3 on list difference
	[ -z "$run" ] || return 0
	on=$(sed -n 's/^# rank 0: driver \([a-z]*\),.*/\1/p' "$log" | head -n 1)
	[ -n "$on" ] || return 0
	list=mpitests/testdata/skipped-$on.txt
	difference=$(diff <(sed -n "s/^$name //p" "$list" | sort) <(sort <<<"$skipped_cases") | grep '^[<>] .')
	[ "$on" = softgpu ] || difference=$(grep '^>' <<<"$difference")
	if [ -n "$difference" ]; then
		fail "FAIL  $name: skipped other cases than $list says (< listed, > skipped):"
		mapfile -t -O ${#failures[@]} failures <<<"$difference"
	fi
}

# judge_program counts what a job has shown. It sets crashed to the case that
# the job ended in, where there is another job to run for the rest.
judge_program() {
	local name=$1 file=$2 status=$3 log=$4 progress=$5 counts last started p f s
	counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
	if [ -n "$counts" ]; then
		read -r p f s < <(sed -E 's/[^0-9]+/ /g' <<<"$counts")
		passed=$((passed + p)) skipped=$((skipped + s))
		if [ "$f" -gt 0 ]; then
			failed=$((failed + f))
			mapfile -t -O ${#failures[@]} failures < <(failed_block "$log")
		elif [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; then
			fail "FAIL  $name: no case failed, but it $(ended_how "$status")" "  again: $(words "${launch[@]}" "$file" --driver "$driver")"
		fi
		return
	fi
	passed=$((passed + $(grep -cE '^end PASS ' "$progress")))
	passed=$((passed - $(grep -cE '^end PASS (setup|teardown)$' "$progress")))
	failed=$((failed + $(grep -cE '^end (FAIL|INCONCLUSIVE) ' "$progress")))
	skipped=$((skipped + $(grep -cE '^end SKIP ' "$progress")))
	mapfile -t -O ${#failures[@]} failures < <(sed -n 's/^repeat //p' "$progress")
	last=$(tail -n 1 "$progress")
	local again=("${launch[@]}" "$file" --driver "$driver")
	case $last in
	'start '*)
		started=${last#start }
		case $started in setup | teardown) ;; *)
			crashed=$started
			again+=(--run "^$(sed 's/[][\.*^$()+?{}|]/\\&/g' <<<"$started")\$")
			;;
		esac
		;;
	*)
		if [ "$status" -eq 2 ]; then
			fail "FAIL  $name: it refused to run: $(grep "^$name: " "$log" | head -n 1)" "  again: $(words "${again[@]}")"
			return
		fi
		started='not in a case'
		;;
	esac
	[ -z "$seed" ] || again+=(--seed "$seed")
	fail "CRASH $name: $started: the job $(ended_how "$status"); the ranks' stacks are above" "  again: $(words "${again[@]}")"
}

# ended_how STATUS
ended_how() {
	if [ "$1" -eq 124 ]; then
		printf 'did not end within %s s (GPURMA_TIME_LIMIT)' "$limit"
	else
		printf 'ended with status %s' "$1"
	fi
}

# failed_block LOG: what a program repeats of its failures before its count.
failed_block() {
	if grep -q '^# failed:$' "$1"; then
		sed -n '/^# failed:$/,/^[0-9]* passed, /p' "$1" | sed '1d;$d'
	else
		grep -E '^(FAIL|INCONCLUSIVE) ' "$1"
	fi
}
