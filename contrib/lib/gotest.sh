# shellcheck shell=bash
# Stages lint, unit and race: what the Go tool and its friends say.

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2

# go_packages lists the packages that this machine can compile, and leaves the others out aloud.
go_packages() {
	local all needs
	all=$(go list ./...) || return 1
	if mpi_flags; then
		packages=$all
		return 0
	fi
	needs=$(go list -test -f '{{.ImportPath}} {{join .Deps " "}}' ./... 2>/dev/null |
		awk '/sbromberger\/gompi/ {print $1}' | sed -E 's/(_test|\.test)$//' | sort -u)
	packages=$(grep -vxF "$needs" <<<"$all")
	leave_out "$1: $(wc -l <<<"$needs") packages below mpitests" \
		"found no ${MPICC:-mpicc}, need MPI and its headers (contrib/run_tests.sh --setup installs them)"
}

stage_lint() {
	local out packages
	out=$(gofmt -l . 2>&1)
	check_lint gofmt "$out" 'gofmt -w .'
	go_packages lint || { fail 'FAIL  go list ./...' && return; }
	# shellcheck disable=SC2086
	out=$(go vet $packages 2>&1) && out=''
	check_lint 'go vet' "$out" 'go vet ./...'
	# shellcheck disable=SC2086
	out=$(go run "$staticcheck" $packages 2>"$logs/staticcheck") && out=''
	[ -z "$out" ] || out+=$(grep -v '^go: downloading' "$logs/staticcheck")
	if grep -qE 'dial tcp|no such host|403 Forbidden|i/o timeout' <"$logs/staticcheck"; then
		leave_out staticcheck "could not fetch $staticcheck"
	else
		check_lint staticcheck "$out" "go run $staticcheck ./..."
	fi
	if command -v shellcheck >/dev/null; then
		out=$(shellcheck -x .ci/run contrib/run_tests.sh 2>&1) && out=''
		check_lint shellcheck "$out" 'shellcheck -x .ci/run contrib/run_tests.sh'
	else
		leave_out shellcheck 'found none on the PATH'
	fi
}

# check_lint NAME OUTPUT AGAIN: no output is a pass.
check_lint() {
	if [ -z "$2" ]; then
		passed=$((passed + 1))
		printf 'ok    %s\n' "$1"
		return
	fi
	printf '%s\n' "$2"
	fail "FAIL  $1: $(head -n 3 <<<"$2" | tr '\n' ';')" "  again: $3"
}

stage_unit() {
	if [ -n "$prebuilt" ]; then
		prebuilt_tests
		return
	fi
	local packages
	go_packages unit || { fail 'FAIL  go list ./...' && return; }
	go_test unit
}

stage_race() {
	local packages
	go_packages race || { fail 'FAIL  go list ./...' && return; }
	packages=$(grep -v '/contrib$' <<<"$packages") # its tests start scripts
	# A binary with the race detector sleeps a second at its exit unless told not to.
	GORACE="${GORACE:-} atexit_sleep_ms=0" go_test race -race
}

# go_test NAME FLAG… runs the tests of $packages.
go_test() {
	local log=$logs/$1 name=$1
	shift
	# shellcheck disable=SC2086
	go test -v -timeout 10m "$@" $packages >"$log" 2>&1
	local status=$?
	grep -E '^(ok|FAIL|panic:|---)' "$log" | grep -vE '^(--- (PASS|SKIP)|FAIL$)'
	judge_tests "$log" $status "$name" "$(words go test "$@")"
}

# prebuilt_tests runs compiled tests, each in its package's folder.
prebuilt_tests() {
	local file folder log status
	for file in "$prebuilt"/test/*.test; do
		file=$(readlink -f "$file")
		folder=$(basename "$file" .test)
		log=$logs/$folder
		(cd "${folder//-//}" && "$file" -test.v -test.timeout 10m) >"$log" 2>&1
		status=$?
		printf '%s  %s\n' "$([ $status -eq 0 ] && echo ok || echo FAIL)" "${folder//-//}"
		judge_tests "$log" $status "${folder//-//}" "cd ${folder//-//} && $file"
	done
}

# judge_tests LOG STATUS NAME COMMAND counts the tests in a log of go test -v,
# top-level ones and whatever is skipped, and keeps what the failed ones said.
judge_tests() {
	local log=$1 status=$2 name=$3 command=$4 p f flag='-run'
	p=$(grep -c '^--- PASS: ' "$log")
	f=$(grep -c '^--- FAIL: ' "$log")
	passed=$((passed + p)) failed=$((failed + f))
	local reasons
	reasons=$(awk '
		/^ *--- SKIP: / {why[said]++}
		/^ *[a-z0-9_]+\.go:[0-9]+: / {said = $0; sub(/^ *[a-z0-9_]+\.go:[0-9]+: /, "", said)}
		END {for (w in why) printf "%d\t%s\n", why[w], w}' "$log")
	while IFS=$'\t' read -r n why; do
		[ -n "$n" ] || continue
		skipped=$((skipped + n))
		left_out+=("SKIP  $name, $n tests: $why")
	done <<<"$reasons"
	[ -z "$prebuilt" ] || flag='-test.run'
	local test package
	while read -r test package; do
		[ -n "$test" ] || continue
		failures+=("FAIL  $name: $test  $package")
		mapfile -t -O ${#failures[@]} failures < <(said_by "$test" "$log" | tail -n 25 | sed 's/^/      /')
		failures+=("  again: $command $package $flag '^$test\$'")
	done < <(awk '/^--- FAIL: /{t[n++] = $3} /^FAIL\t/{for (i = 0; i < n; i++) print t[i], $2; n = 0} END {for (i = 0; i < n; i++) print t[i]}' "$log")
	# Packages that did not compile, tests that panicked or ran out of time.
	if [ "$status" -ne 0 ] && { [ "$f" -eq 0 ] || grep -qE '^panic: |\[(build|setup) failed\]|DATA RACE|^fatal error: ' "$log"; }; then
		fail "FAIL  $name: $command ended with status $status"
		mapfile -t -O ${#failures[@]} failures < <(grep -nE 'panic:|build failed|DATA RACE|\.go:[0-9]+:[0-9]+: |test timed out|fatal error|^FAIL' "$log" | cut -d: -f2- | head -n 25 | sed 's/^/      /')
	fi
}

# said_by TEST LOG: the log between a test's start and its end.
said_by() {
	awk -v test="$1" '
		$1 == "===" && $2 == "RUN" && $3 == test {on = 1}
		on {print}
		$1 == "---" && $2 == "FAIL:" && $3 == test && /^---/ {done = 1}
		done && !/^ |^---/ {exit}
	' "$2"
}
