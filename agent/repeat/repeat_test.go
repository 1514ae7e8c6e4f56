package repeat

import (
	"fmt"
	"testing"
	"time"
)

func TestClass_LeavesOutPortsAddressesAndTimes(t *testing.T) {
	const one = "query to 10.0.0.1:53: read udp 10.0.0.9:41231->10.0.0.1:53: i/o timeout after 5s"
	const other = "query to 10.0.0.2:53: read udp 10.0.0.9:9->10.0.0.2:53: i/o timeout after 12s"
	if ErrorClass(one) != ErrorClass(other) {
		t.Errorf("%q and %q", ErrorClass(one), ErrorClass(other))
	}
	if refused := "query to 10.0.0.1:53: connection refused"; ErrorClass(one) == ErrorClass(refused) {
		t.Errorf("%q for two errors", ErrorClass(one))
	}
}

func TestTimes_AreOfAnySpan(t *testing.T) {
	var times ReportTimes
	now := time.Unix(0, 0)
	reported := []time.Time{}
	for range 1000 {
		if next := times.Next(now, 3); next.After(now) {
			if next.Sub(now) > LimitPeriod {
				t.Fatalf("the next one only after %v", next.Sub(now))
			}
		} else {
			times.Add(now)
			reported = append(reported, now)
		}
		now = now.Add(time.Second)
	}
	for i := range len(reported) - 3 {
		if within := reported[i+3].Sub(reported[i]); within < LimitPeriod {
			t.Errorf("four reports within %v", within)
		}
	}
	if len(reported) < 3*1000/60 {
		t.Errorf("%d reports", len(reported))
	}
}

func TestLimiter_BoundsClassesAndSubjects(t *testing.T) {
	var l Limiter
	limits := Limits{PerClass: 1, PerSubject: 20}
	now := time.Unix(0, 0)
	count := func(name, class func(i int) string) (allowed int) {
		for i := range 10_000 {
			if _, ok := l.Allow(now, name(i), class(i), limits); ok {
				allowed++
			}
		}
		return allowed
	}
	same := func(int) string { return "same" }
	each := func(i int) string { return fmt.Sprint(i) }
	if got := count(same, same); got != 1 {
		t.Errorf("%d reports of one class", got)
	}
	if got := count(same, each); got != 19 {
		t.Errorf("%d reports of more classes", got)
	}
	if got := count(each, same); got > maxSubjects+1 {
		t.Errorf("%d reports of %d subjects", got, maxSubjects)
	}
	now = now.Add(LimitPeriod)
	if omitted, ok := l.Allow(now, "same", "same", limits); !ok || omitted != 10_000-19 {
		t.Errorf("after a minute: %v, %d omitted", ok, omitted)
	}
	if got := count(func(i int) string { return "other" + each(i) }, same); got != maxSubjects {
		t.Errorf("%d reports of other subjects after a minute", got)
	}
	if got := len(l.subjects); got > maxSubjects+1 {
		t.Errorf("%d subjects", got)
	}
}
