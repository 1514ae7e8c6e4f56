package discovery_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// beside are the keywords of expectations that are not about a response.
var beside = []string{"also", "never", "counted", "logged"}

// aside waits until the expectations that are not about responses are met: requests to other
// backends, Envoy's counters and logs.
func (x *exchange) aside(t *testing.T, e *envoy, backends map[string]*backend) {
	t.Helper()
	for _, want := range x.expect {
		if what, value, _ := strings.Cut(want, " "); slices.Contains(beside, what) {
			eventually(t, fmt.Sprintf("%s: %s", x.where, want), func() (bool, string) {
				return x.holds(e, backends, what, value)
			})
		}
	}
}

// lacks reports whether, after limit, there is still an unmet expectation about something other
// than responses.
func (x *exchange) lacks(e *envoy, backends map[string]*backend, limit time.Duration) bool {
	for _, want := range x.expect {
		what, value, _ := strings.Cut(want, " ")
		if !slices.Contains(beside, what) {
			continue
		}
		if !parts.Poll(limit, func() bool {
			ok, _ := x.holds(e, backends, what, value)
			return ok
		}) {
			return true
		}
	}
	return false
}

// holds reports whether an expectation that is not about responses is met now, and what was
// observed.
func (x *exchange) holds(e *envoy, backends map[string]*backend, what, value string) (
	bool, string) {
	switch name, rest, _ := strings.Cut(value, " "); what {
	case "also", "never":
		_, asked := backends[name].asked.Load(rest)
		return asked == (what == "also"), ""
	case "counted":
		low, high := 1, math.MaxInt
		if rest != "" {
			if n, err := fmt.Sscanf(rest, "%d-%d", &low, &high); n < 1 {
				return false, err.Error()
			}
		}
		n := e.Stat(name)
		return low <= n && n <= high, strconv.Itoa(n)
	}
	logged := regexp.MustCompile("(?m)^(?:" + value + ")$").MatchString(e.String())
	return logged, ""
}
