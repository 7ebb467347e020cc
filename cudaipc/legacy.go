package cudaipc

import (
	"fmt"

	"github.com/gpurma/gpurma/cuda"
)

// legacyMapping is memory opened by cuIpcOpenMemHandle.
type legacyMapping struct {
	drv  cuda.Driver
	ctx  cuda.Context
	base cuda.DevicePtr
	gone bool
}

func (c *Cache) importLegacy(e *entry, h Handle, mctx cuda.Context) (imported, error) {
	if ns := e.key.Identity.PIDNS; ns != 0 && c.identity.PIDNS != 0 && ns != c.identity.PIDNS {
		return nil, fmt.Errorf("%w: legacy handles do not cross pid namespaces", ErrUnreachable)
	}
	m := &legacyMapping{drv: c.drv, ctx: mctx}
	err := blocking(func() (err error) {
		m.base, err = c.drv.IpcOpenMemHandle(mctx, cuda.IpcMemHandle(h.Data), cuda.IpcMemLazyEnablePeerAccess)
		return err
	})
	if err != nil {
		return nil, openError(KindLegacy, err, "open legacy handle")
	}
	return m, nil
}

func (m *legacyMapping) kind() Kind          { return KindLegacy }
func (m *legacyMapping) ptr() cuda.DevicePtr { return m.base }

func (m *legacyMapping) close() error {
	if m.gone {
		return nil
	}
	err := blocking(func() error { return m.drv.IpcCloseMemHandle(m.ctx, m.base) })
	if err != nil && !tornDown(err) {
		return fmt.Errorf("close legacy handle at %s: %w", m.base, err)
	}
	m.gone = true
	return nil
}
