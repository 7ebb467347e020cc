package softgpu

import (
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// DeviceGetCount counts the devices that this process sees.
func (d *Driver) DeviceGetCount() (int, error) {
	if err := d.enter("cuDeviceGetCount"); err != nil {
		return 0, err
	}
	return len(d.visible), nil
}

// DeviceGetName names the device after its place in the node.
func (d *Driver) DeviceGetName(dev cuda.Device) (string, error) {
	const call = "cuDeviceGetName"
	if err := d.enter(call); err != nil {
		return "", err
	}
	phys, err := d.device(dev)
	return fmt.Sprintf("softgpu %d", phys), failed(call, err)
}

// DeviceGetUuid is the same for the device in all processes of the node.
func (d *Driver) DeviceGetUuid(dev cuda.Device) (cuda.UUID, error) {
	const call = "cuDeviceGetUuid"
	if err := d.enter(call); err != nil {
		return cuda.UUID{}, err
	}
	phys, err := d.device(dev)
	if err != nil {
		return cuda.UUID{}, failed(call, err)
	}
	return d.node.uuid(phys), nil
}

// DeviceTotalMem is the memory of each of the node's devices.
func (d *Driver) DeviceTotalMem(dev cuda.Device) (uint64, error) {
	const call = "cuDeviceTotalMem"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	if _, err := d.device(dev); err != nil {
		return 0, failed(call, err)
	}
	return d.node.memory(), nil
}

// deviceAttributes are the attributes that are the same on every device.
var deviceAttributes = map[cuda.DeviceAttribute]int{
	cuda.DeviceAttributeMultiprocessorCount:       132,
	cuda.DeviceAttributeIntegrated:                0,
	cuda.DeviceAttributeComputeMode:               0,
	cuda.DeviceAttributeUnifiedAddressing:         1,
	cuda.DeviceAttributePCIDomainID:               0,
	cuda.DeviceAttributeComputeCapabilityMajor:    9,
	cuda.DeviceAttributeComputeCapabilityMinor:    0,
	cuda.DeviceAttributeManagedMemory:             1,
	cuda.DeviceAttributeVirtualMemoryManagement:   1,
	cuda.DeviceAttributeHandleTypePosixFD:         1,
	cuda.DeviceAttributeMemoryPoolsSupported:      1,
	cuda.DeviceAttributeMempoolSupportedHandles:   9,
	cuda.DeviceAttributeHandleTypeFabricSupported: 1,
}

// DeviceGetAttribute answers as the device that was measured does. Fabric
// handles are announced, and refused by MemCreate.
func (d *Driver) DeviceGetAttribute(attr cuda.DeviceAttribute, dev cuda.Device) (int, error) {
	const call = "cuDeviceGetAttribute"
	if err := d.enter(call); err != nil {
		return 0, err
	}
	phys, err := d.device(dev)
	if err != nil {
		return 0, failed(call, err)
	}
	if attr == cuda.DeviceAttributePCIBusID {
		return phys + 1, nil
	}
	v, ok := deviceAttributes[attr]
	if !ok {
		return 0, failed(call, cuda.ErrorInvalidValue)
	}
	return v, nil
}

// DeviceCanAccessPeer is true for any two different devices.
func (d *Driver) DeviceCanAccessPeer(dev, peer cuda.Device) (bool, error) {
	const call = "cuDeviceCanAccessPeer"
	if err := d.enter(call); err != nil {
		return false, err
	}
	for _, x := range []cuda.Device{dev, peer} {
		if _, err := d.device(x); err != nil {
			return false, failed(call, err)
		}
	}
	return dev != peer, nil
}
