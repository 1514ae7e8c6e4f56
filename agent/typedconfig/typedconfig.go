// Package typedconfig checks typed_configs of types that the agent does not link. A process that
// links all of them (outrider-bootstrap) does the work; a Checker remembers its answers.
package typedconfig

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
)

// API is the Envoy whose API is linked: the version of go-control-plane/envoy.
const API = "1.40"

// Config is the content of a typed_config.
type Config struct {
	Type  string          // the name of the message
	Value json.RawMessage // a JSON object
}

// Finding is a problem of a Config.
type Finding struct {
	Field    string // path in the value: descriptors[0].token_bucket; "" is the value itself
	Severity condition.Severity
	Message  string
	Cure     string
	// Unknown means a field, value or type that API does not have.
	Unknown bool
}

const (
	maxKnown = 4096    // remembered answers
	maxBytes = 4 << 20 // of the values of one question

	timeout = 10 * time.Second
)

// RetryAfter is how long after a failure no process is started.
const RetryAfter = time.Minute

// Checker checks Configs. It is safe for concurrent use.
type Checker struct {
	// Run starts the process that checks, and returns the findings of each Config.
	Run func(context.Context, []Config) ([][]Finding, error)

	mu     sync.Mutex
	known  map[[sha256.Size]byte][]Finding
	failed error // of the last run, until retry
	retry  time.Time
}

// Answer has the findings of one Config. Err says why it could not be checked.
type Answer struct {
	Findings []Finding
	Err      error
}

// Check returns an answer for each Config. It starts at most one process, for those that are not
// known, and waits for it at most timeout.
func (c *Checker) Check(configs []Config) []Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers := make([]Answer, len(configs))
	sums := make([][sha256.Size]byte, len(configs))
	var asked []Config
	var index []int
	size := 0
	for i, config := range configs {
		sums[i] = sha256.Sum256([]byte(config.Type + "\n" + string(config.Value)))
		if findings, ok := c.known[sums[i]]; ok {
			answers[i].Findings = findings
		} else if size+len(config.Value) > maxBytes {
			answers[i].Err = fmt.Errorf("those to check have more than %d bytes", maxBytes)
		} else {
			size += len(config.Value)
			asked, index = append(asked, config), append(index, i)
		}
	}
	if len(asked) == 0 {
		return answers
	}
	found, err := c.run(asked)
	if len(c.known)+len(asked) > maxKnown || c.known == nil {
		c.known = map[[sha256.Size]byte][]Finding{}
	}
	for j, i := range index {
		if answers[i].Err = err; err == nil {
			answers[i].Findings = found[j]
			c.known[sums[i]] = found[j]
		}
	}
	return answers
}

// run starts the process, unless it failed a moment ago: each change would wait for it.
func (c *Checker) run(configs []Config) ([][]Finding, error) {
	if c.failed != nil && time.Now().Before(c.retry) {
		return nil, c.failed
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	found, err := c.Run(ctx, configs)
	if err == nil && len(found) != len(configs) {
		err = errors.New("the answer is of another question")
	}
	c.failed, c.retry = err, time.Now().Add(RetryAfter)
	return found, err
}

// Newer reports whether an Envoy's version ("1.41.0") is newer than API, so that it may have what
// API lacks.
func Newer(version string) bool {
	major, minor := parse(version)
	apiMajor, apiMinor := parse(API)
	return major > apiMajor || major == apiMajor && minor > apiMinor
}

func parse(version string) (major, minor int) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	major, _ = strconv.Atoi(parts[0])
	minor, _ = strconv.Atoi(parts[1])
	return major, minor
}
