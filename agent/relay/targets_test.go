package relay

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestTargets_EachAddressHasItsBackOff checks that all addresses are tried before one is tried
// again, that a single address is tried again after a pause that doubles with each failure, and
// that an address that works is preferred.
func TestTargets_EachAddressHasItsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		addresses := []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}
		all := s.newTargets(serverAt(addresses...))
		next := func(anew bool) string {
			t.Helper()
			one, err := all.next(t.Context(), anew)
			if err != nil {
				t.Fatal(err)
			}
			return one.address
		}
		fail := errors.New("refused")
		begun := time.Now()
		var order []string
		for range addresses {
			order = append(order, next(false))
			all.failed(fail)
		}
		if sorted := slices.Sorted(slices.Values(order)); !slices.Equal(sorted, addresses) {
			t.Errorf("tried %v", order)
		}
		if took := time.Since(begun); took > 0 {
			t.Errorf("a pause of %v between addresses that were not tried yet", took)
		}
		for range 30 {
			next(false)
			all.failed(fail)
		}
		if took := time.Since(begun); took < 6*time.Second || took > 10*time.Second {
			t.Errorf("%v for 10 more attempts of each", took)
		}
		if again := s.newTargets(serverAt(addresses...)); true {
			// another session of the same agent has the same random order
			for i := range addresses {
				one, err := again.next(t.Context(), false)
				if again.failed(fail); err != nil || one.address != order[i] {
					t.Errorf("attempt %d of another session: %v, %v", i, one, err)
				}
			}
		}
		used := next(false)
		all.succeeded()
		now := all.current()
		s.inUse.last.Store(&now)
		time.Sleep(time.Minute)
		for range 20 {
			if got := next(false); got != used {
				t.Fatalf("%s in place of %s, which is in use", got, used)
			}
		}
		found := map[string]bool{}
		for range 200 {
			found[next(true)] = true
		}
		if len(found) != len(addresses) {
			t.Errorf("without preference: %v", found)
		}
	})
}

// TestTargets_NamesHaveSeveralIPs checks that all IP addresses of a name are tried, and that a name
// that cannot be resolved does not affect other names.
func TestTargets_NamesHaveSeveralIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New(Options{}).newTargets(serverAt("a.test:15012", "b.test:15012"))
		ips := map[string][]string{"a.test": {"192.0.2.1", "2001:db8::1"}}
		all.lookup = func(_ context.Context, host string) ([]string, error) {
			if found := ips[host]; found != nil {
				return found, nil
			}
			return nil, errors.New("no such host " + host)
		}
		var dialled, failed []string
		for range 3 {
			one, err := all.next(t.Context(), false)
			if err != nil {
				failed = append(failed, err.Error())
			} else {
				dialled = append(dialled, one.dial)
			}
			all.failed(errors.Join(err, errors.New(one.address)))
		}
		if slices.Sort(dialled); !slices.Equal(dialled, []string{"192.0.2.1:15012",
			"[2001:db8::1]:15012"}) {
			t.Errorf("dialled %q", dialled)
		}
		if !slices.Equal(failed, []string{"cannot connect to b.test:15012: no such host b.test"}) {
			t.Errorf("failed: %q", failed)
		}
		if got := all.problem().Error(); got !=
			"a.test:15012; and cannot connect to b.test:15012: no such host b.test\nb.test:15012" {
			t.Errorf("problem %q", got)
		}
		ips["b.test"] = []string{"192.0.2.9"} // from now on the name can be resolved
		time.Sleep(time.Minute)
		for range 3 {
			one, err := all.next(t.Context(), false)
			if err != nil {
				t.Fatal(err)
			}
			dialled = append(dialled, one.dial)
			all.failed(errors.New("refused"))
		}
		if !slices.Contains(dialled, "192.0.2.9:15012") {
			t.Errorf("dialled %q", dialled)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		before := all.current()
		if _, err := all.next(ctx, false); err == nil || all.current() != before {
			t.Errorf("a link that has been replaced: %v, %v", err, all.current())
		}
	})
}
