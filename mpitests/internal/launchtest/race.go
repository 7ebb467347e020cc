//go:build race

package launchtest

const raceDetector = true
