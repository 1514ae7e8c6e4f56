// Package typedconfig checks typed_configs whose types the agent does not link. A Checker passes
// them to a process that links all types (outrider-bootstrap), and caches the results.
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

// LinkedEnvoyAPI is the version of Envoy whose API is linked: that of go-control-plane/envoy.
const LinkedEnvoyAPI = "1.40"

// Config is the content of a typed_config.
type Config struct {
	Type  string          // full name of the message type
	Value json.RawMessage // a JSON object
}

// Finding is a problem of a Config.
type Finding struct {
	Field    string // path in the value: descriptors[0].token_bucket; "" is the value itself
	Severity condition.Severity
	Message  string
	Fix      string `json:"Cure"` // JSON name for compatibility with earlier versions
	// UnknownField reports whether LinkedEnvoyAPI lacks the field, value or type.
	UnknownField bool `json:"Unknown"`
}

const (
	maxKnown = 4096    // number of cached results
	maxBytes = 4 << 20 // total size of the Values that one Check passes to the process

	timeout = 10 * time.Second
)

// RetryAfter is the minimum time between a failure of the process and its next start.
const RetryAfter = time.Minute

// Checker checks Configs. It is safe for concurrent use.
type Checker struct {
	// RunProcess starts the process that checks configs, and returns the findings of each.
	RunProcess func(context.Context, []Config) ([][]Finding, error)

	mu    sync.Mutex
	known map[[sha256.Size]byte]remembered
	// last error of the process; until the time retry, Check returns it and starts no process
	failed error
	retry  time.Time
}

// CheckResult contains the findings of one Config. If Err is not nil, the Config could not be
// checked.
type CheckResult struct {
	Findings []Finding
	Err      error
}

// remembered is a cached CheckResult. If its Err is not nil, it expires at the time retry.
type remembered struct {
	CheckResult
	retry time.Time
}

// question is a Config without a cached result.
type question struct {
	Config
	sum    [sha256.Size]byte
	answer *CheckResult
}

// probe is a trivial question: a process that cannot answer it does not work.
var probe = []question{{Config: Config{Type: "google.protobuf.Empty", Value: json.RawMessage("{}")}}}

// Check returns a result for each of configs. It passes those without a cached result to a process,
// or to several if that fails. It takes at most timeout.
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
			// Otherwise each change of the configuration would wait until the process fails.
		} else if now.Before(c.retry) {
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
				q.answer.Err = fmt.Errorf("all typed_configs together have more than %d bytes",
					maxBytes)
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

// answer passes questions, sorted by size, to a process. If the process fails, although it answers
// probe, answer repeats this for each half of the questions, so that one expensive question causes
// no error for the others. works reports whether the process has already answered probe.
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

// halfOf returns the number of questions, at least one but not all, whose sizes add up to about
// half of the total.
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

// run runs the process for at most half of the remaining time, so that time is left for other
// questions if it hangs.
func (c *Checker) run(ctx context.Context, questions []question) ([][]Finding, error) {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	configs := make([]Config, len(questions))
	for i, q := range questions {
		configs[i] = q.Config
	}
	found, err := c.RunProcess(ctx, configs)
	if err == nil && len(found) != len(configs) {
		err = errors.New("the answer of outrider-bootstrap has another number of results than " +
			"requested")
	}
	return found, err
}

// NewerThanLinkedAPI reports whether an Envoy's version ("1.41.0") is newer than LinkedEnvoyAPI.
// Such an Envoy may support fields and types that LinkedEnvoyAPI lacks.
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
