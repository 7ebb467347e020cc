package softgpu

import (
	"slices"

	"github.com/gpurma/gpurma/cuda"
)

// stagingSize is how much of a copy from pageable host memory may still be on
// its way when the call returns.
const stagingSize = 64 << 10

// transfer is a copy or memset as it is asked for.
type transfer struct {
	dst, src cuda.DevicePtr // 0 for the host side and for a memset
	n        uint64
	stream   cuda.Stream
	move     func(dst, src *span)
}

// start queues the transfer. sync tells that memory with SYNC_MEMOPS is
// involved.
func (d *Driver) start(ctx cuda.Context, t transfer) (o *op, sync bool, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	c, err := d.context(ctx)
	if err != nil {
		return nil, false, err
	}
	s, err := d.stream(c, t.stream)
	if err != nil {
		return nil, false, err
	}
	if t.n == 0 {
		return nil, false, nil
	}
	var dst, src *span
	var spans []*span
	if t.dst != 0 {
		if dst = d.pages.span(d.node.devices, c.device, t.dst, t.n, true); dst == nil {
			return nil, false, cuda.ErrorInvalidValue
		}
		spans = append(spans, dst)
	}
	if t.src != 0 {
		if src = d.pages.span(d.node.devices, c.device, t.src, t.n, false); src == nil {
			return nil, false, cuda.ErrorInvalidValue
		}
		spans = append(spans, src)
	}
	for _, sp := range spans {
		for _, a := range sp.allocs {
			sync = sync || a.syncMemops.Load()
		}
	}
	work := d.movement(s.ctx, spans, func() { t.move(dst, src) })
	return s.ctx.submit(s, nil, work), sync, nil
}

// run starts the transfer and waits for it where always or the memory's
// SYNC_MEMOPS says so.
func (d *Driver) run(call string, ctx cuda.Context, t transfer, always bool) error {
	o, sync, err := d.start(ctx, t)
	if err != nil || o == nil || !sync && !always {
		return failed(call, err)
	}
	return cuda.Err(call, o.wait())
}

func (d *Driver) async(call string, ctx cuda.Context, t transfer) error {
	_, _, err := d.start(ctx, t)
	return failed(call, err)
}

// noMemory stands for a null device pointer where one is needed: no address of
// the emulator is in the first page.
const noMemory = 1

func pointer(p cuda.DevicePtr) cuda.DevicePtr { return max(p, noMemory) }

func memset(dst cuda.DevicePtr, value byte, n uint64, s cuda.Stream) transfer {
	return transfer{dst: pointer(dst), n: n, stream: s, move: func(to, _ *span) { fill(to.segments, value) }}
}

func hostToDevice(dst cuda.DevicePtr, src []byte, s cuda.Stream) transfer {
	return transfer{dst: pointer(dst), n: uint64(len(src)), stream: s,
		move: func(to, _ *span) { store(to.segments, src) }}
}

func deviceToHost(dst []byte, src cuda.DevicePtr, s cuda.Stream) transfer {
	return transfer{src: pointer(src), n: uint64(len(dst)), stream: s,
		move: func(_, from *span) { load(dst, from.segments) }}
}

func deviceToDevice(dst, src cuda.DevicePtr, n uint64, s cuda.Stream) transfer {
	return transfer{dst: pointer(dst), src: pointer(src), n: n, stream: s,
		move: func(to, from *span) { transport(to.segments, from.segments) }}
}

// MemsetD8 returns before it is done, except for SYNC_MEMOPS memory.
func (d *Driver) MemsetD8(ctx cuda.Context, dst cuda.DevicePtr, value byte, n uint64) error {
	const call = "cuMemsetD8"
	if err := d.enter(call); err != nil {
		return err
	}
	return d.run(call, ctx, memset(dst, value, n, 0), false)
}

// MemcpyHtoD returns when src may be used again. Up to 64 KiB may then still be
// on their way, except for SYNC_MEMOPS memory.
func (d *Driver) MemcpyHtoD(ctx cuda.Context, dst cuda.DevicePtr, src []byte) error {
	const call = "cuMemcpyHtoD"
	if err := d.enter(call); err != nil {
		return err
	}
	direct := max(len(src)-stagingSize, 0)
	if direct > 0 {
		if err := d.checkRange(ctx, dst, uint64(len(src))); err != nil {
			return failed(call, err)
		}
		if err := d.run(call, ctx, hostToDevice(dst, src[:direct], 0), true); err != nil {
			return err
		}
	}
	staged := slices.Clone(src[direct:])
	return d.run(call, ctx, hostToDevice(dst.Add(uint64(direct)), staged, 0), false)
}

// checkRange refuses a copy to the device that its parts would be refused for.
func (d *Driver) checkRange(ctx cuda.Context, dst cuda.DevicePtr, n uint64) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	c, err := d.context(ctx)
	if err == nil && d.pages.span(d.node.devices, c.device, dst, n, true) == nil {
		err = cuda.ErrorInvalidValue
	}
	return err
}

// MemcpyDtoH returns when it is done.
func (d *Driver) MemcpyDtoH(ctx cuda.Context, dst []byte, src cuda.DevicePtr) error {
	const call = "cuMemcpyDtoH"
	if err := d.enter(call); err != nil {
		return err
	}
	return d.run(call, ctx, deviceToHost(dst, src, 0), true)
}

// MemcpyDtoD returns before it is done, except for SYNC_MEMOPS memory.
func (d *Driver) MemcpyDtoD(ctx cuda.Context, dst, src cuda.DevicePtr, n uint64) error {
	const call = "cuMemcpyDtoD"
	if err := d.enter(call); err != nil {
		return err
	}
	return d.run(call, ctx, deviceToDevice(dst, src, n, 0), false)
}

// MemsetD8Async queues a memset.
func (d *Driver) MemsetD8Async(ctx cuda.Context, dst cuda.DevicePtr, value byte, n uint64, s cuda.Stream) error {
	const call = "cuMemsetD8Async"
	if err := d.enter(call); err != nil {
		return err
	}
	return d.async(call, ctx, memset(dst, value, n, s))
}

// MemcpyHtoDAsync queues a copy that reads src when its turn comes.
func (d *Driver) MemcpyHtoDAsync(ctx cuda.Context, dst cuda.DevicePtr, src []byte, s cuda.Stream) error {
	const call = "cuMemcpyHtoDAsync"
	if err := d.enter(call); err != nil {
		return err
	}
	return d.async(call, ctx, hostToDevice(dst, src, s))
}

// MemcpyDtoHAsync queues a copy that writes dst when its turn comes.
func (d *Driver) MemcpyDtoHAsync(ctx cuda.Context, dst []byte, src cuda.DevicePtr, s cuda.Stream) error {
	const call = "cuMemcpyDtoHAsync"
	if err := d.enter(call); err != nil {
		return err
	}
	return d.async(call, ctx, deviceToHost(dst, src, s))
}

// MemcpyDtoDAsync queues a copy. Overlapping ranges give undefined bytes.
func (d *Driver) MemcpyDtoDAsync(ctx cuda.Context, dst, src cuda.DevicePtr, n uint64, s cuda.Stream) error {
	const call = "cuMemcpyDtoDAsync"
	if err := d.enter(call); err != nil {
		return err
	}
	return d.async(call, ctx, deviceToDevice(dst, src, n, s))
}
