package main

import (
	"fmt"

	"github.com/gpurma/gpurma/mpitests/internal/devmem"
)

// operation is what the initiator does: the sender puts, or the receiver gets.
type operation string

const (
	opPut operation = "put"
	opGet operation = "get"
)

// testCase is one transfer between the two ranks of a pair.
type testCase struct {
	op        operation
	sender    int // 0 or 1: the rank within the pair whose bytes move
	situation situation
	send      devmem.Allocator // the sender's memory
	recv      devmem.Allocator // the receiver's
	size      uint64           // bytes
}

// Name is unique and selects the case with --run.
func (c testCase) Name() string {
	return fmt.Sprintf("%s/%dto%d/%d/%s/%s/%d", c.op, c.sender, 1-c.sender, c.situation.index, c.send.UCXName, c.recv.UCXName, c.size)
}

// UCXLine is the case as UCX's test_rma_cuda names it.
func (c testCase) UCXLine() string {
	return fmt.Sprintf("TEST[%d:%s:%s:%d]", c.situation.index, c.send.UCXName, c.recv.UCXName, c.size)
}

// initiator is the rank within the pair that calls Put or Get.
func (c testCase) initiator() int {
	if c.op == opPut {
		return c.sender
	}
	return 1 - c.sender
}

// allCases lists the whole matrix, ordered so that the cases that share contexts
// and an endpoint follow one another.
func allCases(sizes []uint64) []testCase {
	var all []testCase
	for _, s := range situations {
		for sender := range 2 {
			for _, op := range []operation{opPut, opGet} {
				for _, send := range devmem.All() {
					for _, recv := range devmem.All() {
						for _, size := range sizes {
							all = append(all, testCase{op, sender, s, send, recv, size})
						}
					}
				}
			}
		}
	}
	return all
}
