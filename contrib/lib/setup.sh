# shellcheck shell=bash
# --setup: what the stages need and this machine lacks, from apt.

setup() {
	local packages=()
	[ -n "$prebuilt" ] || command -v gcc >/dev/null || packages+=(gcc libc6-dev)
	if ! command -v "${MPIRUN:-mpirun}" >/dev/null || { [ -z "$prebuilt" ] && ! command -v "${MPICC:-mpicc}" >/dev/null; }; then
		packages+=(openmpi-bin libopenmpi-dev)
	fi
	case " $* " in *' lint '*) command -v shellcheck >/dev/null || packages+=(shellcheck) ;; esac
	if [ ${#packages[@]} -eq 0 ]; then
		echo '# setup: nothing is missing'
		return 0
	fi
	local root=()
	if [ "$(id -u)" -ne 0 ]; then
		if sudo -n true 2>/dev/null; then
			root=(sudo -n)
		else
			echo "run_tests.sh: --setup: missing ${packages[*]}; installing needs root or sudo without a password. Ask for: apt-get install ${packages[*]}" >&2
			return 1
		fi
	fi
	if ! command -v apt-get >/dev/null; then
		echo "run_tests.sh: --setup: missing ${packages[*]} (names of Debian's packages), and there is no apt-get to install them with" >&2
		return 1
	fi
	echo "# setup: installing ${packages[*]}"
	if ! {
		"${root[@]}" apt-get update &&
			"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
	} >"$logs/setup" 2>&1 </dev/null; then
		tail -n 15 "$logs/setup" >&2
		echo "run_tests.sh: --setup: could not install ${packages[*]}" >&2
		return 1
	fi
}
