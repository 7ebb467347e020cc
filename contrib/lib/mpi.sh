# shellcheck shell=bash
# The launcher: which one it is, how it starts ranks here, and whether it does.

mpirun=${MPIRUN:-mpirun}
launch=()       # the command up to the program
launch_note=''  # what was chosen, and why

# find_launch sets launch. Open MPI is asked what it has; others get no options of Open MPI's.
find_launch() {
	local version components cores
	if ! command -v "$mpirun" >/dev/null; then
		launch_failed "found no $mpirun on the PATH" 'contrib/run_tests.sh --setup installs Open MPI; MPIRUN names another launcher'
		return 1
	fi
	version=$("$mpirun" --version 2>&1 | head -n 1)
	launch=("$mpirun")
	launch_note="$version, $(command -v "$mpirun")"
	case $version in
	*'Open MPI'* | *OpenRTE* | *PRRTE* | *prte*)
		if [ "$(id -u)" -eq 0 ]; then
			# Launcher and daemon each look, at either of the two.
			launch+=(--allow-run-as-root)
			export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
			export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
			launch_note+=', as root'
		fi
		# With neither ssh nor rsh there it starts nothing, not even here, unless told that it needs none.
		components=$("$(dirname "$(command -v "$mpirun")")/ompi_info" --param plm all --level 9 2>/dev/null)
		case $components in
		*'MCA plm: isolated'*)
			launch+=(-mca plm isolated)
			launch_note+=', launcher component plm isolated'
			;;
		*)
			launch+=(-mca plm_rsh_agent '' )
			export PRTE_MCA_plm_ssh_agent=
			launch_note+=', no launcher component plm isolated: remote agent set to none'
			;;
		esac
		# Not in /dev/shm, which may be small, and where a killed job would leave them.
		export OMPI_MCA_btl_vader_backing_directory="${OMPI_MCA_btl_vader_backing_directory:-$logs}"
		export OMPI_MCA_btl_sm_backing_directory="${OMPI_MCA_btl_sm_backing_directory:-$logs}"
		cores=$(nproc)
		launch+=(--bind-to none --oversubscribe)
		if [ "$np" -gt "$cores" ]; then
			launch+=(-mca mpi_yield_when_idle 1)
			launch_note+=", yields when idle ($np ranks, $cores cores)"
		fi
		# The programs themselves keep MPI off the GPU, however they are started.
		;;
	esac
	launch+=(-np "$np")
}

launch_failed() {
	refuse "LAUNCH FAILED, no program code ran: $1" "  remedy: $2"
}

# preflight starts two ranks that do nothing. Versions and component lists are
# fine in images where no rank ever starts; only a start proves one.
preflight() {
	local rc log=$logs/preflight up
	timeout -k 5 60 "${launch[@]}" sh -c 'echo a rank is up' >"$log" 2>&1 </dev/null
	rc=$?
	up=$(grep -c 'a rank is up' "$log")
	if [ $rc -eq 0 ] && [ "$up" -eq "$np" ]; then
		return 0
	fi
	local remedy="run by hand: $(words "${launch[@]}" sh -c 'echo a rank is up')"
	if grep -qE 'plm_rsh_agent|ssh : rsh' "$log"; then
		remedy='the launcher wants ssh or rsh even on one machine: install openssh-client, or export OMPI_MCA_plm=isolated'
	elif grep -qi 'run as root\|allow-run-as-root\|ALLOW_RUN_AS_ROOT' "$log"; then
		remedy='the launcher refuses root: run as another user'
	elif grep -qi 'not enough slots' "$log"; then
		remedy="the allocation has fewer than $np slots: ask for more, or give fewer ranks with --np"
	elif grep -qi 'No space left\|backing' "$log"; then
		remedy='/dev/shm or TMPDIR is full: make room'
	elif [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
		remedy="it did not end within 60 s; $remedy"
	fi
	grep -v '^[-[:space:]]*$' "$log" | head -n 12 | sed 's/^/  | /'
	launch_failed "$(words "${launch[@]}") ended with status $rc, and $up of $np ranks started" "$remedy"
	return 1
}

# prefix_of FILE: where the package that FILE belongs to is installed: what
# stands before its first folder bin or lib*.
prefix_of() {
	local file
	file=$(readlink -f "$1")
	sed -E 's,/(bin|lib[^/]*)/.*,,' <<<"$file"
}

# outer_prefix_of FILE: the same before the last such folder (/usr/lib64/openmpi/bin/mpirun).
outer_prefix_of() {
	local file
	file=$(readlink -f "$1")
	sed -E 's,^(.*)/(bin|lib[^/]*)/.*,\1,' <<<"$file"
}

# one_mpi PROGRAM: launcher and library belong together (two MPIs on a machine
# give programs that each believe to be alone).
one_mpi() {
	local library launcher a b
	launcher=$(command -v "$mpirun")
	library=$(ldd "$1" 2>/dev/null | awk '$1 ~ /^libmpi\.so/ {print $3}')
	if [ -z "$library" ] || [ "$library" = not ]; then
		launch_failed "$1 finds no libmpi.so" "install the MPI it was built with, or put its folder into LD_LIBRARY_PATH"
		return 1
	fi
	printf '# libmpi: %s\n' "$(readlink -f "$library")"
	for a in "$(prefix_of "$launcher")" "$(outer_prefix_of "$launcher")"; do
		for b in "$(prefix_of "$library")" "$(outer_prefix_of "$library")"; do
			[ "$a" != "$b" ] || return 0
		done
	done
	launch_failed "two MPIs: the launcher is $(readlink -f "$launcher"), but $1 loads $(readlink -f "$library")" \
		'put the bin folder of one MPI first on the PATH, build with its mpicc, and unset LD_LIBRARY_PATH; or set MPIRUN and MPICC'
	return 1
}

# mpi_flags lets cgo compile against the MPI that mpicc belongs to.
mpi_flags() {
	local cc=${MPICC:-mpicc} compile link
	command -v "$cc" >/dev/null || return 1
	if compile=$("$cc" --showme:compile 2>/dev/null) && link=$("$cc" --showme:link 2>/dev/null); then
		export CGO_CFLAGS="${CGO_CFLAGS:--g -O2} $compile" CGO_LDFLAGS="${CGO_LDFLAGS:--g -O2} $link"
		return 0
	fi
	return 1
}
