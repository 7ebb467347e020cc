// Package softgpu emulates a CUDA driver in shared memory: processes that use
// it share "GPUs", allocate on them, exchange IPC handles and copy, on any Linux
// machine. What it answers follows what was measured on a real driver.
//
// # Nodes
//
// A node is a directory, by default under /dev/shm, that belongs to one user
// (mode 0700). Its files are
//
//	node        what the node is (header), and the file of the node lock
//	device-N    the physical memory of device N, sparse, in blocks of 2 MiB
//	table-ID    what one process holds: blocks, allocations, contexts
//	ticket-ID   an exported POSIX descriptor: what its holder holds
//
// Each [Driver] is one process of the node, with a table of its own: two
// Drivers in one real process behave as two processes. A table is written by
// its own process only, and an entry of it counts from the one aligned write of
// its state word on. A process lives as long as the lock on its table, a ticket
// as long as the lock on it, which is held by every copy of the descriptor.
// Totals are the union over live tables and tickets; a dead one is dropped by
// the next process that looks, and its blocks with it. So a process may be
// killed at any instruction and nothing needs repair. The last one to leave
// removes the node.
//
// # Addresses
//
// A device address is a number that the driver translates, page by page, to
// blocks. It lies in a range that is reserved without access, so that code
// which dereferences a device address faults as it would on a GPU. Addresses
// are given first-fit: a freed address is the next one to be used again.
//
// # Asynchrony
//
// Every stream has its own executor. Memsets, device-to-device copies and the
// last part of host-to-device copies return before they are done; see
// [Config.CopyDelay] to make that last. Frees and closes wait for the work that
// uses the memory.
//
// # Locks
//
// In this order: the process-wide mutex under every node lock, the node lock
// (an OFD lock), Driver.mu, context.mu. Nobody waits for work in flight, and no
// hook runs, with any of them held.
package softgpu
