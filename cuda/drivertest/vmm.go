package drivertest

import (
	"errors"

	"github.com/gpurma/gpurma/cuda"
)

// mapRange reserves size bytes of addresses, maps the handle there and opens
// it to dev. It undoes what it did when a step fails.
func mapRange(drv cuda.Driver, ctx cuda.Context, dev cuda.Device, size uint64, mem cuda.MemHandle) (_ cuda.DevicePtr, err error) {
	ptr, err := drv.MemAddressReserve(ctx, size, 0)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, drv.MemAddressFree(ctx, ptr, size))
		}
	}()
	if err := drv.MemMap(ctx, ptr, size, 0, mem); err != nil {
		return 0, err
	}
	if err := drv.MemSetAccess(ctx, ptr, size, dev, cuda.AccessReadWrite); err != nil {
		return 0, errors.Join(err, drv.MemUnmap(ctx, ptr, size))
	}
	return ptr, nil
}

// unmapRange undoes mapRange.
func unmapRange(drv cuda.Driver, ctx cuda.Context, ptr cuda.DevicePtr, size uint64) error {
	return errors.Join(drv.MemUnmap(ctx, ptr, size), drv.MemAddressFree(ctx, ptr, size))
}
