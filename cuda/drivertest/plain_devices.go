package drivertest

import "github.com/gpurma/gpurma/cuda"

func testPlatform(f *fixture) {
	f.NotEmpty(f.drv.Name())
	f.NotEmpty(f.drv.Version())
	f.observed("driver %s, %s", f.drv.Name(), f.drv.Version())

	other, _ := f.open(f.t)
	f.NoError(other.Close())
	f.NoError(other.Close(), "second close")
	_, err := other.DeviceGetCount()
	f.refused(cuda.ErrorDeinitialized, err, "call on a closed driver")
	_, err = f.drv.DeviceGetCount()
	f.NoError(err, "the driver that is still open")
}

func testDevices(f *fixture) {
	count, err := f.drv.DeviceGetCount()
	f.NoError(err)
	f.Positive(count)
	seen := map[cuda.UUID]cuda.Device{}
	for dev := range cuda.Device(count) {
		name, err := f.drv.DeviceGetName(dev)
		f.NoError(err)
		f.NotEmpty(name)
		uuid, err := f.drv.DeviceGetUuid(dev)
		f.NoError(err)
		f.NotZero(uuid)
		f.NotContains(seen, uuid)
		seen[uuid] = dev
		total, err := f.drv.DeviceTotalMem(dev)
		f.NoError(err)
		f.Positive(total)
		f.observed("device %d: %s, %v, %d bytes", dev, name, uuid, total)
		for attr, want := range map[cuda.DeviceAttribute]int{
			cuda.DeviceAttributeUnifiedAddressing:       1,
			cuda.DeviceAttributeManagedMemory:           1,
			cuda.DeviceAttributeVirtualMemoryManagement: 1,
		} {
			got, err := f.drv.DeviceGetAttribute(attr, dev)
			f.NoError(err)
			f.Equal(want, got, "attribute %d", attr)
		}
		sms, err := f.drv.DeviceGetAttribute(cuda.DeviceAttributeMultiprocessorCount, dev)
		f.NoError(err)
		f.Positive(sms)
	}
	uuid, err := startPeer(f.t, f.peerEnv).do(request{Op: "hello"})
	f.NoError(err)
	f.Contains(seen, uuid.UUID, "the peer's device, known here by its UUID")

	_, total, err := f.drv.MemGetInfo(f.ctx)
	f.NoError(err)
	want, err := f.drv.DeviceTotalMem(f.dev)
	f.NoError(err)
	f.observed("total of MemGetInfo %d, of DeviceTotalMem %d", total, want)

	_, err = f.drv.DeviceGetAttribute(1<<20, f.dev)
	f.refused(cuda.ErrorInvalidValue, err, "unknown attribute")
	for _, dev := range []cuda.Device{cuda.Device(count), -1} {
		_, err = f.drv.DeviceGetName(dev)
		f.refused(cuda.ErrorInvalidDevice, err, "name of %d", dev)
		_, err = f.drv.DeviceGetUuid(dev)
		f.refused(cuda.ErrorInvalidDevice, err, "UUID of %d", dev)
		_, err = f.drv.DeviceTotalMem(dev)
		f.refused(cuda.ErrorInvalidDevice, err, "memory of %d", dev)
		_, err = f.drv.DeviceGetAttribute(cuda.DeviceAttributeMultiprocessorCount, dev)
		f.refused(cuda.ErrorInvalidDevice, err, "attribute of %d", dev)
		_, err = f.drv.DeviceCanAccessPeer(f.dev, dev)
		f.refused(cuda.ErrorInvalidDevice, err, "access to %d", dev)
		_, err = f.drv.DeviceCanAccessPeer(dev, f.dev)
		f.refused(cuda.ErrorInvalidDevice, err, "access from %d", dev)
		_, err = f.drv.DevicePrimaryCtxRetain(dev)
		f.refused(cuda.ErrorInvalidDevice, err, "primary context of %d", dev)
		f.refused(cuda.ErrorInvalidDevice, f.drv.DevicePrimaryCtxRelease(dev), "release for %d", dev)
		_, err = f.drv.DevicePrimaryCtxGetState(dev)
		f.refused(cuda.ErrorInvalidDevice, err, "state for %d", dev)
		_, err = f.drv.CtxCreate(dev)
		f.refused(cuda.ErrorInvalidDevice, err, "context on %d", dev)
	}
	can, err := f.drv.DeviceCanAccessPeer(f.dev, f.dev)
	f.observed("device reaches itself: %v (%v)", can, err)
}
