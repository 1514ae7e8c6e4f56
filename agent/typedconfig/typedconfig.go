// Package typedconfig checks typed_configs of types that the agent does not link. A process that
// links all of them (outrider-bootstrap) does the work; a Checker remembers its answers.
package typedconfig

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
)

// LinkedEnvoyAPI is the Envoy whose API is linked: the version of go-control-plane/envoy.
const LinkedEnvoyAPI = "1.40"

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
	Fix      string `json:"Cure"` // the name of earlier versions
	// Unknown means a field, value or type that LinkedEnvoyAPI does not have.
	Unknown bool
}

const (
	maxKnown = 4096    // number of cached results
	maxBytes = 4 << 20 // size of all Values that one Check may pass to the process

	timeout = 10 * time.Second
)

// RetryAfter is the minimum time between a failure of the process and the next request to it.
const RetryAfter = time.Minute

// Checker checks Configs. It is safe for concurrent use.
type Checker struct {
	// Run starts the process that checks, and returns the findings of each Config.
	Run func(context.Context, []Config) ([][]Finding, error)

	mu     sync.Mutex
	known  map[[sha256.Size]byte]remembered
	failed error // error of the process, returned for every request until retry
	retry  time.Time
}

// CheckResult has the findings of one Config. Err says why it could not be checked.
type CheckResult struct {
	Findings []Finding
	Err      error
}

// remembered is a cached CheckResult; one with Err is requested again after retry.
type remembered struct {
	CheckResult
	retry time.Time
}

// question is a Config without a remembered answer.
type question struct {
	Config
	sum    [sha256.Size]byte
	answer *CheckResult
}

// probe is a question that every working process can answer.
var probe = []question{{Config: Config{Type: "google.protobuf.Empty", Value: json.RawMessage("{}")}}}

// Check returns an answer for each Config. It starts processes for those that are not known, one
// unless that fails, and waits for them at most timeout.
func (c *Checker) Check(configs []Config) []CheckResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	answers := make([]CheckResult, len(configs))
	var questions []question
	for i, config := range configs {
		sum := sha256.Sum256([]byte(config.Type + "\n" + string(config.Value)))
		if known, ok := c.known[sum]; ok && (known.Err == nil || now.Before(known.retry)) {
			answers[i] = known.CheckResult
		} else if now.Before(c.retry) { // each change would wait for the process to fail
			answers[i].Err = c.failed
		} else {
			questions = append(questions, question{config, sum, &answers[i]})
		}
	}
	slices.SortStableFunc(questions, func(a, b question) int { return len(a.Value) - len(b.Value) })
	size := 0
	for i, q := range questions {
		if size += len(q.Value); size > maxBytes {
			for _, q := range questions[i:] {
				q.answer.Err = fmt.Errorf("those to check have more than %d bytes", maxBytes)
			}
			questions = questions[:i]
			break
		}
	}
	if len(questions) == 0 {
		return answers
	}
	if len(c.known)+len(questions) > maxKnown || c.known == nil {
		c.known = map[[sha256.Size]byte]remembered{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c.answer(ctx, questions, false)
	return answers
}

// answer answers questions, sorted by size. If the process fails at them although it works, it asks
// for the smaller and the larger ones, so that one that is too expensive leaves the others checked.
func (c *Checker) answer(ctx context.Context, questions []question, works bool) {
	found, err := c.run(ctx, questions)
	if err != nil && !works {
		_, failed := c.run(ctx, probe)
		if works = failed == nil; !works {
			c.failed, c.retry = err, time.Now().Add(RetryAfter)
		}
	}
	if err != nil && works && len(questions) > 1 && ctx.Err() == nil {
		half := halfOf(questions)
		c.answer(ctx, questions[:half], works)
		c.answer(ctx, questions[half:], works)
		return
	}
	for i, q := range questions {
		if q.answer.Err = err; err == nil {
			q.answer.Findings = found[i]
		}
		c.known[q.sum] = remembered{*q.answer, time.Now().Add(RetryAfter)}
	}
}

// halfOf returns how many of at least two questions have half of the bytes.
func halfOf(questions []question) int {
	total, size, half := 0, 0, 0
	for _, q := range questions {
		total += len(q.Value)
	}
	for half < len(questions)-1 && 2*(size+len(questions[half].Value)) <= total {
		size += len(questions[half].Value)
		half++
	}
	return max(half, 1)
}

// run runs the process for at most half of the time that is left, so that one that hangs leaves
// time for the others.
func (c *Checker) run(ctx context.Context, questions []question) ([][]Finding, error) {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	configs := make([]Config, len(questions))
	for i, q := range questions {
		configs[i] = q.Config
	}
	found, err := c.Run(ctx, configs)
	if err == nil && len(found) != len(configs) {
		err = errors.New("the answer is of another question")
	}
	return found, err
}

// NewerThanLinkedAPI reports whether an Envoy's version ("1.41.0") is newer than LinkedEnvoyAPI, so
// that it may have what LinkedEnvoyAPI lacks.
func NewerThanLinkedAPI(version string) bool {
	major, minor := parse(version)
	apiMajor, apiMinor := parse(LinkedEnvoyAPI)
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
