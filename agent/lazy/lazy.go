// Package lazy is for what most runs of a program never need, and for what can wait until it is needed: package variables that are made when
// they are first used, and not before main.
package lazy

import (
	"regexp"
	"sync"
)

// Regexp compiles a pattern when the function is first called, which panics if the pattern is wrong.
func Regexp(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
