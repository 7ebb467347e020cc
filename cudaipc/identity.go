package cudaipc

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Identity names one process for its whole life and no other: a pid alone is
// reused, and equal in two namespaces. It is comparable.
type Identity struct {
	System [16]byte // the machine's boot id, equal in all containers of a host
	Nonce  [16]byte // random, once a process
	Start  uint64   // start time in clock ticks since boot, as /proc/PID/stat has it
	PID    uint32   // as the process itself sees it
	PIDNS  uint64   // inode of its pid namespace; 0 where unknown
}

// String is short: pid and the head of the nonce.
func (id Identity) String() string {
	return fmt.Sprintf("pid %d (%s)", id.PID, hex.EncodeToString(id.Nonce[:4]))
}

var selfIdentity = sync.OnceValues(readSelf)

// Self returns the identity of this process. After a fork it is ErrForked.
func Self() (Identity, error) {
	if forked() {
		return Identity{}, ErrForked
	}
	return selfIdentity()
}

func readSelf() (Identity, error) {
	id := Identity{PID: uint32(os.Getpid())}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fmt.Errorf("read identity: %w", err)
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(boot)), "-", ""))
	if err != nil || len(raw) != len(id.System) {
		return Identity{}, fmt.Errorf("read identity: boot id %q is no UUID", boot)
	}
	copy(id.System[:], raw)
	if id.Start, err = startTime("/proc/self/stat"); err != nil {
		return Identity{}, fmt.Errorf("read identity: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err == nil {
		id.PIDNS = st.Ino
	}
	if _, err := rand.Read(id.Nonce[:]); err != nil {
		return Identity{}, fmt.Errorf("read identity: %w", err)
	}
	return id, nil
}

// startTime reads field 22 of a /proc/PID/stat file. The second field is the
// command in parentheses and may itself hold blanks and parentheses.
func startTime(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	s := string(b)
	i := strings.LastIndexByte(s, ')')
	if i < 0 {
		return 0, errors.New(path + ": no command field")
	}
	const afterCommand = 22 - 3 // fields[0] is field 3
	fields := strings.Fields(s[i+1:])
	if len(fields) <= afterCommand {
		return 0, errors.New(path + ": too few fields")
	}
	return strconv.ParseUint(fields[afterCommand], 10, 64)
}
