package softgpu

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/dustin/go-humanize"

	"github.com/gpurma/gpurma/cuda"
)

// Driver is one process of a node.
type Driver struct {
	cfg     Config
	node    *node
	table   *table // under the node lock
	visible []int  // ordinal to device of the node

	closed  atomic.Bool
	closeMu sync.Mutex
	hook    atomic.Pointer[func(string) cuda.Result]
	calls   callCounts
	stacks  currentStacks
	nextID  atomic.Uint64 // contexts, streams, events, memory handles

	mu           sync.RWMutex // what follows; inside the node lock
	addresses    addressSpace
	pages        pageTable
	contexts     map[cuda.Context]*context
	primaries    []*context // by ordinal; nil where not active
	streams      map[cuda.Stream]*stream
	events       map[cuda.Event]*event
	imports      map[importKey]*allocation
	handles      map[cuda.MemHandle]*physical
	reservations map[cuda.DevicePtr]pages
	pools        map[cuda.MemPool]*pool
	nextBuffer   uint64
	nextAlloc    uint64
	opens        uint64
	closes       uint64
	violations   []string
}

var _ cuda.Driver = (*Driver)(nil)

// Open joins the node that cfg names as a process of its own, making the node
// where there is none. Nodes beside it whose processes have all died are
// removed. An error of a node that cannot be used matches cuda.ErrNoDriver.
func Open(cfg Config) (_ *Driver, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	sweep(filepath.Dir(cfg.Node))
	n, err := openNode(cfg)
	if err != nil {
		return nil, fmt.Errorf("softgpu: %w: %w", cuda.ErrNoDriver, err)
	}
	d := &Driver{
		cfg:          cfg,
		node:         n,
		visible:      cfg.Visible,
		pages:        pageTable{},
		contexts:     map[cuda.Context]*context{},
		streams:      map[cuda.Stream]*stream{},
		events:       map[cuda.Event]*event{},
		imports:      map[importKey]*allocation{},
		handles:      map[cuda.MemHandle]*physical{},
		reservations: map[cuda.DevicePtr]pages{},
		pools:        map[cuda.MemPool]*pool{},
		calls:        newCallCounts(),
	}
	if d.visible == nil {
		for i := range n.header.devices {
			d.visible = append(d.visible, i)
		}
	}
	d.primaries = make([]*context, len(d.visible))
	if d.table, err = d.join(); err != nil {
		err = fmt.Errorf("softgpu: %w: join node %s: %w", cuda.ErrNoDriver, n.path, err)
		return nil, errors.Join(err, n.unlock(), n.close())
	}
	return d, n.unlock()
}

// join drops dead processes and puts this one's table in.
func (d *Driver) join() (*table, error) {
	if _, err := d.node.takeCensus(nil); err != nil {
		return nil, err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	return createTable(d.node, binary.LittleEndian.Uint64(id[:])|1)
}

// Close ends the process's part in the node: it waits for the work in flight,
// gives back everything the process has, and removes the node if it is the last
// one there. A node that an exported descriptor still holds stays.
func (d *Driver) Close() error {
	d.closeMu.Lock()
	defer d.closeMu.Unlock()
	if d.closed.Swap(true) {
		return nil
	}
	d.mu.Lock()
	var last []*op
	for _, c := range d.contexts {
		last = append(last, c.pending()...)
	}
	d.mu.Unlock()
	for _, o := range last {
		o.wait()
	}
	err := d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(err, d.addresses.close(), d.node.close())
}

func (d *Driver) leave() (err error) {
	n := d.node
	if err := n.lock(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.unlock()) }()
	if n.stillThere() != nil {
		return d.table.f.Close() // somebody removed the node by hand
	}
	c, err := n.takeCensus(d.table)
	if err != nil {
		return errors.Join(err, d.table.f.Close())
	}
	for dev := range d.table.held {
		// The table names the blocks until they are given back.
		err = errors.Join(err, n.punch(dev, d.table.held[dev].without(c.others[dev])))
		clear(d.table.held[dev])
	}
	if err := d.table.remove(); err != nil {
		return err
	}
	if c.holders == 0 {
		return errors.Join(err, n.remove())
	}
	return err
}

// Name is "softgpu".
func (d *Driver) Name() string { return "softgpu" }

// Version names the node.
func (d *Driver) Version() string {
	return fmt.Sprintf("emulated, node %s, devices of %s", d.node.path, humanize.IBytes(d.node.memory()))
}

// NodePath is the directory of the node.
func (d *Driver) NodePath() string { return d.node.path }

// Config is the configuration that the driver was opened with, its node named.
func (d *Driver) Config() Config { return d.cfg }

// DeviceFileInode is the inode of the file that holds the device's memory: two
// processes that see the same number share the device.
func (d *Driver) DeviceFileInode(dev cuda.Device) (uint64, error) {
	phys, err := d.device(dev)
	if err != nil {
		return 0, fmt.Errorf("inode of device %d: %w", dev, err)
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed.Load() {
		return 0, fmt.Errorf("inode of device %d: %w", dev, cuda.ErrorDeinitialized)
	}
	ino, _, err := inode(d.node.devices[phys].f)
	return ino, err
}

// device translates an ordinal to a device of the node.
func (d *Driver) device(dev cuda.Device) (int, error) {
	if dev < 0 || int(dev) >= len(d.visible) {
		return 0, cuda.ErrorInvalidDevice
	}
	return d.visible[dev], nil
}

// newID returns a number for a context, stream, event or handle: never 0, never
// used twice, and never the address of anything.
func (d *Driver) newID() uint64 { return 0x50f7_0000_0000 + d.nextID.Add(1)*16 }

// locked runs f under the node lock, in an open driver.
func (d *Driver) locked(f func() error) (err error) {
	if err := d.node.lock(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.node.unlock()) }()
	if d.closed.Load() {
		return cuda.ErrorDeinitialized
	}
	return f()
}

// failed makes the error of a call: a [cuda.CallError] whose result is the one
// that err matches, ErrorOperatingSystem for an error that matches none.
func failed(call string, err error) error {
	if err == nil {
		return nil
	}
	if already, ok := errors.AsType[*cuda.CallError](err); ok {
		return already
	}
	result, ok := errors.AsType[cuda.Result](err)
	if !ok {
		return &cuda.CallError{Call: call, Result: cuda.ErrorOperatingSystem, Detail: err.Error()}
	}
	e := &cuda.CallError{Call: call, Result: result}
	if detail := err.Error(); detail != result.Error() {
		e.Detail = detail
	}
	return e
}
