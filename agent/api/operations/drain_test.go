package operations

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
)

// fakeProxy implements drained.
type fakeProxy struct {
	epoch       func() (epoch.Epoch, bool)
	connections func() (uint64, error)
}

func (p fakeProxy) Epoch() (epoch.Epoch, bool) { return p.epoch() }

func (p fakeProxy) Connections(context.Context, epoch.Epoch) (uint64, error) {
	return p.connections()
}

// Connections may arrive until the listeners are closed, so a count of zero before that does not
// end the wait.
func TestDrain_WaitsUntilListenersClose(t *testing.T) {
	for name, test := range map[string]struct {
		wait  bool
		live  func(after time.Duration, e *epoch.Epoch) bool
		count func(after time.Duration) uint64
		took  time.Duration
		left  uint64
		mute  func(after time.Duration) bool // reports whether Envoy does not answer
		known string                         // expected reason why the count is unknown
		fails string
		told  []string
	}{
		"no wait":       {left: 2, count: func(time.Duration) uint64 { return 2 }},
		"no connection": {wait: true, took: 20 * time.Second, told: []string{"0 until 20s"}},
		"connections come": {wait: true, took: 30 * time.Second, told: []string{"0 until 20s",
			"1 until 20s", "1"}, count: func(after time.Duration) uint64 {
			if after > 4*time.Second && after < 30*time.Second {
				return 1
			}
			return 0
		}},
		"a new epoch that confirms the drain later": {wait: true, took: 40 * time.Second,
			told: []string{"0 until 20s", "0", "0 until 40s"},
			live: func(after time.Duration, e *epoch.Epoch) bool {
				if after > 10*time.Second {
					e.ListenersCloseAt = time.Time{}
				}
				if after > 20*time.Second {
					e.ListenersCloseAt = time.Now().Add(40*time.Second - after)
				}
				return true
			}},
		"undrained": {wait: true, took: 5 * time.Second, fails: "cancelled",
			told: []string{"0 until 20s"}, live: func(after time.Duration, e *epoch.Epoch) bool {
				e.DrainRequested = after < 5*time.Second
				return true
			}},
		"another epoch takes over": {wait: true, took: 30 * time.Second, told: []string{"0 until 20s",
			"0 until 30s"}, live: func(after time.Duration, e *epoch.Epoch) bool {
			e.State = epoch.StateLive
			if after > 3*time.Second && after < 18*time.Second {
				e.State = epoch.StateHandingOver
			}
			if after > 18*time.Second {
				e.ID, e.ListenersCloseAt = "1", e.ListenersCloseAt.Add(10*time.Second)
			}
			return true
		}, mute: func(after time.Duration) bool {
			return after > 3*time.Second && after < 18*time.Second
		}},
		"its admin interface is lost for a while": {wait: true, took: 25 * time.Second,
			told: []string{"0 until 20s"}, live: func(after time.Duration, e *epoch.Epoch) bool {
				e.AdminLost = after > 3*time.Second && after < 25*time.Second
				return true
			}, mute: func(after time.Duration) bool {
				return after > 3*time.Second && after < 25*time.Second
			}},
		"a moment without an answer": {wait: true, took: 20 * time.Second,
			told: []string{"0 until 20s"},
			mute: func(after time.Duration) bool {
				return after > 3*time.Second && after < 12*time.Second
			}},
		"no answer any more": {wait: true, took: 15 * time.Second, fails: "connection refused",
			told: []string{"0 until 20s"},
			mute: func(after time.Duration) bool { return after >= 5*time.Second }},
		"no wait and no answer": {known: "connection refused",
			mute: func(time.Duration) bool { return true }},
		"no wait, and not confirmed": {known: "has not confirmed",
			live: func(_ time.Duration, e *epoch.Epoch) bool {
				e.ListenersCloseAt = time.Time{}
				return true
			}},
		"Envoy ends": {wait: true, took: 5 * time.Second, told: []string{"0 until 20s"},
			live: func(after time.Duration, _ *epoch.Epoch) bool {
				return after < 5*time.Second
			}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				var told []string
				proxy := fakeProxy{
					epoch: func() (epoch.Epoch, bool) {
						e := epoch.Epoch{DrainRequested: true,
							ListenersCloseAt: begun.Add(20 * time.Second)}
						ok := test.live == nil || test.live(time.Since(begun), &e)
						return e, ok
					},
					connections: func() (uint64, error) {
						if test.mute != nil && test.mute(time.Since(begun)) {
							return 0, syscall.ECONNREFUSED
						}
						if test.count == nil {
							return 0, nil
						}
						return test.count(time.Since(begun)), nil
					}}
				result, err := drainWait{proxy,
					func(p api.Progress) {
						text := fmt.Sprint(*p.Connections)
						if !p.Until.IsZero() {
							text += " until " + p.Until.Sub(begun).String()
						}
						told = append(told, text)
					},
				}.until(t.Context(), test.wait)
				if took := time.Since(begun); took < test.took || took > test.took+3*drainPoll {
					t.Errorf("took %s, want %s", took, test.took)
				}
				if (result.UncountedReason == "") != (test.known == "") ||
					!strings.Contains(result.UncountedReason,
						test.known) {
					t.Errorf("%+v", result)
				}
				if result.Connections != test.left || (err == nil) != (test.fails == "") ||
					err != nil && !strings.Contains(err.Error(), test.fails) {
					t.Errorf("%+v, %v", result, err)
				}
				if diff := cmp.Diff(test.told, told); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
