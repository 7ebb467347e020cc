# shellcheck shell=bash
# What passed, what failed, and the end of the output: the last lines tell it all.

passed=0 failed=0 skipped=0
could_not_start=no # MPI, or the GPU is somebody else's: exit status 3
refusals=()        # why
failures=() left_out=()

# fail LINE…: one failure, with what to repeat at the end.
fail() {
	failed=$((failed + 1))
	failures+=("$@")
}

# refuse LINE…: nothing was run, and that is no failed case.
refuse() {
	could_not_start=yes
	refusals+=("$@")
	printf '%s\n' "$@"
}

# leave_out WHAT WHY: something that could not be tried here.
leave_out() {
	skipped=$((skipped + 1))
	left_out+=("SKIP  $1: $2")
	printf '# SKIP %s: %s\n' "$1" "$2"
}

finish() {
	if [ ${#left_out[@]} -gt 0 ]; then
		printf '# left out:\n'
		printf '%s\n' "${left_out[@]}"
	fi
	[ ${#refusals[@]} -eq 0 ] || printf '%s\n' "${refusals[@]}"
	if [ ${#failures[@]} -gt 0 ]; then
		printf '# failed:\n'
		printf '%s\n' "${failures[@]}"
	fi
	printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
	[ "$failed" -eq 0 ] || exit 1
	[ $could_not_start = no ] || exit 3
	[ "$passed" -gt 0 ] || exit 77
	exit 0
}

# words ARG…: the arguments as one command line that a shell reads back.
words() {
	local out='' word
	for word; do
		case $word in
		'' | *[!A-Za-z0-9_=/.,:+@%-]*) word="'${word//\'/\'\\\'\'}'" ;;
		esac
		out+=${out:+ }$word
	done
	printf '%s' "$out"
}
