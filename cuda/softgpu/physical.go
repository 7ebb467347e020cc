package softgpu

import (
	"errors"

	"github.com/gpurma/gpurma/cuda"
)

// takeBlocks takes count blocks of a device for this process: they are backed,
// and held in the table. It runs under the node lock.
func (d *Driver) takeBlocks(device int, count uint64) ([]extent, error) {
	n := d.node
	if count == 0 || count > uint64(n.blocks) {
		return nil, cuda.ErrorOutOfMemory
	}
	c, err := n.takeCensus(d.table)
	if err != nil {
		return nil, err
	}
	if c.free(&n.header, device) < count*BlockSize {
		return nil, cuda.ErrorOutOfMemory
	}
	es := c.used[device].findFree(n.blocks, uint32(count))
	if es == nil {
		return nil, cuda.ErrorOutOfMemory
	}
	if err := n.back(device, es, c); err != nil {
		return nil, err
	}
	if err := d.table.hold(device, es); err != nil {
		return nil, errors.Join(err, n.punch(device, es))
	}
	return es, nil
}

// dropBlocks gives back one reference of each block. The storage of those that
// nobody else holds goes before the table stops naming them, so that a process
// which is killed in between leaves them to whoever buries it. It runs under
// the node lock.
func (d *Driver) dropBlocks(device int, es []extent) error {
	dropped := d.table.unhold(device, es)
	if len(dropped) == 0 {
		return nil
	}
	c, err := d.node.takeCensus(d.table)
	if err != nil {
		return errors.Join(err, d.table.writeHeld(device, dropped))
	}
	gone := newBitmap(d.node.blocks)
	gone.setExtents(dropped)
	return errors.Join(
		d.node.punch(device, gone.without(c.others[device])),
		d.table.writeHeld(device, dropped))
}
