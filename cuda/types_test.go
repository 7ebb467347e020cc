package cuda_test

import (
	"testing"

	"github.com/gpurma/gpurma/cuda"
	"github.com/stretchr/testify/require"
)

func TestUUIDString(t *testing.T) {
	var uuid cuda.UUID
	require.Equal(t, "GPU-00000000-0000-0000-0000-000000000000", uuid.String())
	for i := range uuid {
		uuid[i] = byte(0xf0 + i)
	}
	require.Equal(t, "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff", uuid.String())
}

func TestHandleTypeString(t *testing.T) {
	for handle, want := range map[cuda.HandleType]string{
		cuda.HandleTypeNone:                            "none",
		cuda.HandleTypePosixFD:                         "posix-fd",
		cuda.HandleTypeFabric:                          "fabric",
		cuda.HandleTypePosixFD | cuda.HandleTypeFabric: "posix-fd|fabric",
		cuda.HandleTypeFabric | 0x6:                    "fabric|0x6",
		0x10:                                           "0x10",
	} {
		require.Equal(t, want, handle.String())
	}
}

func TestDevicePtr(t *testing.T) {
	ptr := cuda.DevicePtr(0x7f0000000000)
	require.Equal(t, "0x7f0000000000", ptr.String())
	require.Equal(t, cuda.DevicePtr(0x7f0000200000), ptr.Add(2<<20))
}
