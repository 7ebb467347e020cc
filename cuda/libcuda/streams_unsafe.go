package libcuda

// #include "shim.h"
import "C"

import "github.com/gpurma/gpurma/cuda"

// The answer that pollers get most often, made once.
var (
	streamNotReady = cuda.Err("cuStreamQuery", cuda.ErrorNotReady)
	eventNotReady  = cuda.Err("cuEventQuery", cuda.ErrorNotReady)
)

func (d *driver) StreamCreate(ctx cuda.Context, flags uint32) (cuda.Stream, error) {
	v := C.lc_stream_create(d.api, C.uintptr_t(ctx), C.uint32_t(flags))
	return cuda.Stream(v.value), d.result("cuStreamCreate", v.code)
}

func (d *driver) StreamDestroy(ctx cuda.Context, stream cuda.Stream) error {
	return d.result("cuStreamDestroy", C.lc_stream_destroy(d.api, C.uintptr_t(ctx), C.uintptr_t(stream)))
}

func (d *driver) StreamSynchronize(ctx cuda.Context, stream cuda.Stream) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuStreamSynchronize", C.lc_stream_synchronize(d.api, C.uintptr_t(ctx), C.uintptr_t(stream)))
}

func (d *driver) StreamQuery(ctx cuda.Context, stream cuda.Stream) error {
	r := C.lc_stream_query(d.api, C.uintptr_t(ctx), C.uintptr_t(stream))
	if cuda.Result(r) == cuda.ErrorNotReady {
		return streamNotReady
	}
	return d.result("cuStreamQuery", r)
}

func (d *driver) StreamWaitEvent(ctx cuda.Context, stream cuda.Stream, event cuda.Event) error {
	return d.result("cuStreamWaitEvent",
		C.lc_stream_wait_event(d.api, C.uintptr_t(ctx), C.uintptr_t(stream), C.uintptr_t(event)))
}

func (d *driver) EventCreate(ctx cuda.Context, flags uint32) (cuda.Event, error) {
	v := C.lc_event_create(d.api, C.uintptr_t(ctx), C.uint32_t(flags))
	return cuda.Event(v.value), d.result("cuEventCreate", v.code)
}

func (d *driver) EventDestroy(ctx cuda.Context, event cuda.Event) error {
	return d.result("cuEventDestroy", C.lc_event_destroy(d.api, C.uintptr_t(ctx), C.uintptr_t(event)))
}

func (d *driver) EventRecord(ctx cuda.Context, event cuda.Event, stream cuda.Stream) error {
	return d.result("cuEventRecord", C.lc_event_record(d.api, C.uintptr_t(ctx), C.uintptr_t(event), C.uintptr_t(stream)))
}

func (d *driver) EventQuery(ctx cuda.Context, event cuda.Event) error {
	r := C.lc_event_query(d.api, C.uintptr_t(ctx), C.uintptr_t(event))
	if cuda.Result(r) == cuda.ErrorNotReady {
		return eventNotReady
	}
	return d.result("cuEventQuery", r)
}

func (d *driver) EventSynchronize(ctx cuda.Context, event cuda.Event) error {
	beginBlocking()
	defer endBlocking()
	return d.result("cuEventSynchronize", C.lc_event_synchronize(d.api, C.uintptr_t(ctx), C.uintptr_t(event)))
}
