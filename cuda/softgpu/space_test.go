package softgpu

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestFindFreeModel compares findFree with a scan block by block.
func TestFindFreeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint32Range(1, 300).Draw(t, "total")
		b := newBitmap(total)
		for _, e := range rapid.SliceOfN(rapid.Custom(func(t *rapid.T) extent {
			first := rapid.Uint32Range(0, total-1).Draw(t, "first")
			return extent{first, rapid.Uint32Range(0, total-first).Draw(t, "count")}
		}), 0, 6).Draw(t, "taken") {
			b.setExtents([]extent{e})
		}
		want := rapid.Uint32Range(1, total).Draw(t, "want")

		var free []uint32
		first := -1
		for i := range total {
			if !b.has(i) {
				free = append(free, i)
			}
			if n := len(free); first < 0 && n >= int(want) && free[n-1]-free[n-int(want)] == want-1 {
				first = int(free[n-int(want)])
			}
		}
		got := b.findFree(total, want)
		switch {
		case len(free) < int(want):
			require.Empty(t, got)
		case first >= 0:
			require.Equal(t, []extent{{uint32(first), want}}, got)
		default:
			require.Equal(t, free[:want], blockList(got))
		}
	})
}

// TestAddressSpaceModel: what is taken is aligned, apart from all else that is
// taken, and the lowest place there was.
func TestAddressSpaceModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const first, count = 1000, 200
		a := addressSpace{free: []pages{{first, count}}}
		used := map[uint64]bool{}
		var taken []pages
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.Uint64Range(1, 40).Draw(t, "count")
				align := uint64(1) << rapid.IntRange(0, 4).Draw(t, "align")
				want, found := uint64(0), false
				for p := uint64(first); !found && p+n <= first+count; p++ {
					found = p%align == 0
					for i := p; found && i < p+n; i++ {
						found = !used[i]
					}
					want = p
				}
				got, ok := a.fit(n, align)
				require.Equal(t, found, ok)
				if !ok {
					return
				}
				require.Equal(t, want, got)
				for i := got; i < got+n; i++ {
					used[i] = true
				}
				taken = append(taken, pages{got, n})
			},
			"give": func(t *rapid.T) {
				if len(taken) == 0 {
					return
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				p := taken[i]
				taken = append(taken[:i], taken[i+1:]...)
				a.give(p)
				for i := range p.count {
					delete(used, p.first+i)
				}
			},
			"": func(t *rapid.T) {
				free := uint64(0)
				for i, f := range a.free {
					free += f.count
					require.True(t, i == 0 || a.free[i-1].end() < f.first, "sorted and never adjacent: %v", a.free)
				}
				require.EqualValues(t, count-len(used), free)
			},
		})
	})
}

// TestFitSmallModel: small allocations of a page never overlap.
func TestFitSmallModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &region{pages: pages{8, 1}}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(r.small) > 0 && rapid.Bool().Draw(t, "free") {
				i := rapid.IntRange(0, len(r.small)-1).Draw(t, "which")
				r.small = append(r.small[:i], r.small[i+1:]...)
				continue
			}
			r.fit(&allocation{size: rapid.Uint64Range(1, BlockSize-1).Draw(t, "size")})
			end := r.base()
			for _, a := range r.small {
				require.GreaterOrEqual(t, a.base, end)
				require.Zero(t, a.base%smallUnit)
				end = a.base.Add(a.size)
			}
			require.LessOrEqual(t, end, r.base().Add(BlockSize))
		}
	})
}
