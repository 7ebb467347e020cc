package cudaipc

// driverSlots bounds the driver calls that may block: each holds an OS thread,
// and the Go runtime ends the process at 10 000 of them. It is per process, as
// that limit is.
var driverSlots = make(chan struct{}, 64)

// blocking runs f, which may block in the driver, in one of the slots. Waiting
// for one holds no thread.
func blocking(f func() error) error {
	driverSlots <- struct{}{}
	defer func() { <-driverSlots }()
	return f()
}
