package typedconfig_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/typedconfig"
)

// If the process fails because of some Configs, only these have an error, unless it fails for every
// Config.
func TestChecker_FailureIsOfOneConfig(t *testing.T) {
	const others = 100
	for name, test := range map[string]struct {
		expensive []string
		hangs     bool
		broken    bool
		runs      int // maximum number of starts of the process
	}{
		"a large one":    {expensive: []string{strings.Repeat("x", 1<<16)}, runs: 4},
		"a small one":    {expensive: []string{"x"}, runs: 18},
		"two":            {expensive: []string{strings.Repeat("x", 1<<16), strings.Repeat("x", 1<<17)}, runs: 6},
		"one that hangs": {expensive: []string{strings.Repeat("x", 1<<16)}, hangs: true, runs: 4},
		"all":            {broken: true, runs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs, repaired := 0, false
				checker := typedconfig.Checker{RunProcess: func(ctx context.Context,
					questions []typedconfig.Config) (
					[][]typedconfig.Finding, error) {
					runs++
					for _, config := range questions {
						if !repaired && (test.broken || strings.Contains(string(config.Value), "x")) {
							if test.hangs {
								<-ctx.Done()
							}
							return nil, errors.New("no memory")
						}
					}
					return make([][]typedconfig.Finding, len(questions)), nil
				}}
				var configs []typedconfig.Config
				for _, text := range test.expensive {
					configs = append(configs, typedconfig.Config{Value: json.RawMessage(`"` + text + `"`)})
				}
				for i := range others {
					configs = append(configs, typedconfig.Config{Value: json.RawMessage(fmt.Sprint(i))})
				}
				for range 2 { // the second Check must return the cached results
					for i, answer := range checker.Check(configs) {
						if failed := test.broken || i < len(test.expensive); (answer.Err != nil) != failed {
							t.Errorf("%d: %v", i, answer.Err)
						}
					}
				}
				if runs > test.runs {
					t.Errorf("%d runs", runs)
				}
				changed := checker.Check([]typedconfig.Config{{Value: json.RawMessage("1000")}})
				if (changed[0].Err != nil) != test.broken {
					t.Errorf("a change: %v", changed[0].Err)
				}
				repaired = true
				time.Sleep(typedconfig.RetryAfter)
				for i, answer := range checker.Check(configs) {
					if answer.Err != nil {
						t.Errorf("%d a minute later: %v", i, answer.Err)
					}
				}
			})
		})
	}
}
