package hostconflict

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOneOfTwoGoesFirstInAnyOrder makes two agents become reachable (+) and check (?) in different
// orders: exactly one has precedence.
func TestOneOfTwoGoesFirstInAnyOrder(t *testing.T) {
	const same = "envoy.admin_port = 16000\nstatus.address = \"\"\ntelemetry.prometheus_address = \"\""
	for _, order := range []string{"a+ a? b+ b?", "a+ b+ a? b?", "a+ b+ b? a?", "b+ a+ a? b?",
		"b+ a+ b? a?", "b+ b? a+ a?"} {
		synctest.Test(t, func(t *testing.T) {
			s := newStreet(t, map[string]string{"a": same, "b": same})
			answers := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
			presences := map[string]*ReachableTime{"a": NewReachableTime(answers["a"]),
				"b": NewReachableTime(answers["b"])}
			refused := 0
			for step := range strings.FieldsSeq(order) {
				time.Sleep(time.Millisecond) // on the fake clock: reachable times differ
				name := step[:1]
				if step[1] == '+' {
					if !presences[name].Since().IsZero() {
						t.Errorf("%s: %s is there before it can be asked", order, name)
					}
					close(answers[name])
					continue
				}
				// Reachable agents respond to the check.
				for other, presence := range presences {
					if since := presence.Since(); !since.IsZero() {
						s.runs(other, false, 0)
						agent := s.running["/run/outrider/"+other]
						agent.Started = since
						s.running["/run/outrider/"+other] = agent
					}
				}
				self := AgentToCheck{Name: name, Config: s.load(name), EnvoyUID: envoyUID,
					OtherAgent: OtherAgent{Started: presences[name].Since()}}
				refused += min(1, len(s.Check(t.Context(), self).Conflicts))
			}
			if refused != 1 {
				t.Errorf("%s: %d are refused", order, refused)
			}
		})
	}
}
