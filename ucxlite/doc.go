// Package ucxlite is remote memory access to GPU memory of other processes, in
// the shape and terms of UCX's UCP.
//
// # The path
//
//	owner:    Context → MemMap → Memory.PackRkey → bytes ──(any channel)──┐
//	importer: Context → Worker → NewEndpoint(owner's WorkerAddress)       │
//	          Endpoint.UnpackRkey(bytes) → Rkey  ◄────────────────────────┘
//	          Rkey.Ptr, Endpoint.Put, Endpoint.Get, Worker.RemoteMemList
//	          Rkey.Destroy
//	owner:    Memory.Unmap, then free: the memory is back
//
// # Lives
//
// Parents outlive children: Context, then Worker and Memory, then Endpoint,
// then Rkey and Request. Close is idempotent everywhere; where children are
// still in use it changes nothing and returns [ErrBusy] naming them. An
// endpoint is the exception for its keys: closing it ends them, and each
// reference they hold is dropped exactly once.
//
// An Rkey opens nothing until its first use. From then on it claims its mapping
// of the owner's allocation (package cudaipc says what a claim and a pin are).
// An operation in flight, a pointer from [Rkey.Ptr] and an element of a memory
// list pin it: operations and lists on their own, beyond the key; a pointer as
// long as the key lives and no longer. Operations and elements inherit the
// key's [Policy], and the last to let go decides with it: FreeUnused closes
// the mapping before it returns.
//
// # Progress
//
// Wire-up, staged copies, descriptor hand-over and the answers to peers run on
// goroutines of the Context: nobody calls Progress for a peer's sake. Progress,
// Flush, Wait and Test look at this worker's operations; callbacks run in
// Progress, Flush and Wait, on the calling goroutine, with no lock held.
//
// # Locks
//
// Every method may be called from any goroutine. No lock is held across a
// driver call, a callback, or a send that may block. Order: Context.mu,
// Worker.mu, Endpoint.mu, Rkey.mu; peer.mu is a leaf.
package ucxlite
