package libcuda

// maxBlocking bounds the threads that driver calls can hold at once. A Go
// process dies at 10 000 threads; calls that wait for the device are few enough
// in practice for 64 never to be felt.
const maxBlocking = 64

// blocking has a place for each call that may wait. It is the package's and
// not a driver's because threads are the process's. No call that another one
// could be waiting for takes a place: submitting work and asking for its state
// never do.
var blocking = make(chan struct{}, maxBlocking)

func beginBlocking() { blocking <- struct{}{} }
func endBlocking()   { <-blocking }
