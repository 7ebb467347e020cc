package ucxlite

import "github.com/gpurma/gpurma/cudaipc"

// Policy says what becomes of a mapping when the last that uses it lets go.
type Policy = cudaipc.Policy

const (
	// FreeUnused, the default, closes the mapping before the last release
	// returns, whatever policy the others had: memory wins.
	FreeUnused = cudaipc.FreeUnused
	// Retain leaves it open and idle, for the next key of the same memory.
	Retain = cudaipc.Retain
)
