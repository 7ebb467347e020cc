package cudaipc

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpurma/gpurma/cuda"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldenKeys are the keys in testdata. Their bytes never change: a new layout is
// a new version with new files.
func goldenKeys() map[string]Key {
	id := Identity{Start: 0x1122334455667788, PID: 4242, PIDNS: 0xeffffffc}
	for i := range id.System {
		id.System[i], id.Nonce[i] = byte(i), byte(0xf0+i)
	}
	var uuid cuda.UUID
	for i := range uuid {
		uuid[i] = byte(0x80 + i)
	}
	k := Key{
		Identity: id, Slot: 7, Generation: 3, Device: uuid,
		Base: 0x7f0000000000, Length: 64 << 20, Offset: 64<<10 + 3, UserLength: 511, BufferID: 19,
	}
	legacy := k
	legacy.Handles = []Handle{{KindLegacy, bytes.Repeat([]byte{0xa5}, 64)}}
	both := k
	both.Handles = []Handle{{KindPosixFD, []byte{0x10, 0x27, 0, 0}}, {KindFabric, []byte("fabric")}}
	return map[string]Key{"none": k, "legacy": legacy, "posixfd-fabric": both}
}

func TestKeyGolden(t *testing.T) {
	for name, k := range goldenKeys() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", "key-v1-"+name+".hex")
			got, err := k.MarshalBinary()
			require.NoError(t, err)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(hex.Dump(got)), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(string(want), hex.Dump(got)))

			back, err := ParseKey(got)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(k, back))
		})
	}
}

// sealed packs by hand what AppendBinary would refuse: the length and checksum
// are made right.
func sealed(b []byte) []byte {
	binary.LittleEndian.PutUint16(b[6:], uint16(len(b)))
	binary.LittleEndian.PutUint32(b[8:], keySum(b))
	return b
}

func packed(tb testing.TB, name string) []byte {
	k := goldenKeys()[name]
	b, err := k.MarshalBinary()
	require.NoError(tb, err)
	return b
}

func TestParseKeyRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(b []byte) []byte
	}{
		{"nothing", func(b []byte) []byte { return nil }},
		{"header only", func(b []byte) []byte { return b[:keyHeader] }},
		{"one byte less", func(b []byte) []byte { return b[:len(b)-1] }},
		{"one byte more", func(b []byte) []byte { return append(b, 0) }},
		{"another magic", func(b []byte) []byte { b[0]++; return sealed(b) }},
		{"another version", func(b []byte) []byte { b[4]++; return sealed(b) }},
		{"a feature to understand", func(b []byte) []byte { b[5] = 0x10; return sealed(b) }},
		{"stray bytes", func(b []byte) []byte { return sealed(append(b, 9, 9)) }},
		{"handle longer than the rest", func(b []byte) []byte {
			binary.LittleEndian.PutUint16(b[keyFixed+1:], 65)
			return sealed(b)
		}},
		{"legacy handle of 63 bytes", func(b []byte) []byte {
			binary.LittleEndian.PutUint16(b[keyFixed+1:], 63)
			return sealed(b[:len(b)-1])
		}},
		{"length 0", func(b []byte) []byte { clear(b[96:120]); return sealed(b) }},
		{"base and length overflow", func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[96:], ^uint64(0))
			return sealed(b)
		}},
		{"offset past the end", func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[104:], 64<<20+1)
			return sealed(b)
		}},
		{"range past the end", func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[112:], 64<<20)
			return sealed(b)
		}},
		{"offset and range overflow", func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[112:], ^uint64(0)-2)
			return sealed(b)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseKey(tc.change(packed(t, "legacy")))
			require.ErrorIs(t, err, ErrInvalidKey)
		})
	}
}

func TestParseKeySkipsUnknownKinds(t *testing.T) {
	b := packed(t, "legacy")
	b = append(b, 200, 3, 0, 1, 2, 3)
	b = append(b, 0, 1, 0, 9) // KindNone is no handle either
	b[5] = 0x0f               // features that may be ignored
	k, err := ParseKey(sealed(b))
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(goldenKeys()["legacy"], k))
}

// Every single-bit change of a key is noticed.
func TestParseKeyBitFlips(t *testing.T) {
	for name := range goldenKeys() {
		b := packed(t, name)
		for i := range 8 * len(b) {
			b[i/8] ^= 1 << (i % 8)
			_, err := ParseKey(b)
			require.ErrorIs(t, err, ErrInvalidKey, "%s: bit %d", name, i)
			b[i/8] ^= 1 << (i % 8)
		}
	}
}

// The key does not refer to the bytes it was parsed from.
func TestParseKeyCopies(t *testing.T) {
	b := packed(t, "legacy")
	k, err := ParseKey(b)
	require.NoError(t, err)
	clear(b)
	require.Empty(t, cmp.Diff(goldenKeys()["legacy"], k))
}

func drawKey(t *rapid.T) Key {
	length := rapid.Uint64Range(1, 1<<47).Draw(t, "length")
	offset := rapid.Uint64Range(0, length).Draw(t, "offset")
	k := Key{
		Identity: Identity{
			System: [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "system")),
			Nonce:  [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "nonce")),
			Start:  rapid.Uint64().Draw(t, "start"), PID: rapid.Uint32().Draw(t, "pid"), PIDNS: rapid.Uint64().Draw(t, "pidns"),
		},
		Slot: rapid.Uint32().Draw(t, "slot"), Generation: rapid.Uint32().Draw(t, "generation"),
		Device: cuda.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "device")),
		Base:   cuda.DevicePtr(rapid.Uint64Range(0, 1<<62).Draw(t, "base")), Length: length,
		Offset: offset, UserLength: rapid.Uint64Range(0, length-offset).Draw(t, "user length"),
		BufferID: rapid.Uint64().Draw(t, "buffer"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "handles") {
		kind := Kind(rapid.IntRange(1, 4).Draw(t, "kind"))
		n := kind.size()
		if n == 0 {
			n = rapid.IntRange(0, 100).Draw(t, "size")
		}
		k.Handles = append(k.Handles, Handle{kind, rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")})
	}
	return k
}

func TestKeyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := drawKey(t)
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "prefix")
		b, err := k.AppendBinary(bytes.Clone(prefix))
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(b, prefix))
		back, err := ParseKey(b[len(prefix):])
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(k, back, cmpopts.EquateEmpty()))
	})
}

func TestKeyRefusesToPack(t *testing.T) {
	good := goldenKeys()["legacy"]
	for name, change := range map[string]func(k *Key){
		"no length":       func(k *Key) { k.Length = 0 },
		"range too long":  func(k *Key) { k.UserLength = k.Length },
		"short handle":    func(k *Key) { k.Handles = []Handle{{KindLegacy, make([]byte, 63)}} },
		"unknown kind":    func(k *Key) { k.Handles = []Handle{{77, nil}} },
		"too long":        func(k *Key) { k.Handles = []Handle{{KindFabric, make([]byte, 1<<16)}} },
		"too long in all": func(k *Key) { h := Handle{KindFabric, make([]byte, 40000)}; k.Handles = []Handle{h, h} },
	} {
		t.Run(name, func(t *testing.T) {
			k := good
			change(&k)
			b, err := k.AppendBinary([]byte("x"))
			require.ErrorIs(t, err, ErrInvalidKey)
			require.Equal(t, "x", string(b), "nothing half written")
		})
	}
}

func TestKeyForPeople(t *testing.T) {
	k := goldenKeys()["legacy"]
	require.Contains(t, k.String(), "legacy key [0x7f0000010003, +511) in 0x7f0000000000+67108864, buffer 19")
	require.Contains(t, k.String(), "pid 4242")
	var got map[string]any
	b, err := json.Marshal(&k)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, "0x7f0000000000", got["base"])
	require.Equal(t, []any{"legacy"}, got["kinds"])
	require.Equal(t, "GPU-80818283-8485-8687-8889-8a8b8c8d8e8f", got["device"])
}

// FuzzParseKey: any bytes give a key or ErrInvalidKey, and a key that was parsed
// packs to bytes that parse to the same.
func FuzzParseKey(f *testing.F) {
	for name := range goldenKeys() {
		f.Add(packed(f, name), false)
		f.Add(packed(f, name), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= keyFixed && len(b) <= maxKeyLength {
			b = sealed(b) // or the checksum would hide the rest from the fuzzer
		}
		k, err := ParseKey(b)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidKey)
			return
		}
		again, err := k.MarshalBinary()
		require.NoError(t, err)
		back, err := ParseKey(again)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(k, back))
		_ = k.String()
	})
}
