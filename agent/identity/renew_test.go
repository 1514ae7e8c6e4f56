package identity_test

import (
	"context"
	"crypto/x509"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
)

const lifetime = 24 * time.Hour

// world is a Manager in a synctest bubble, with a certificate authority and a wall clock that
// jumps.
type world struct {
	*identity.Manager
	t       *testing.T
	board   *condition.Registry
	watcher fakeWatcher

	mu     sync.Mutex
	jump   time.Duration // time by which the wall clock is ahead of the monotonic clock
	skew   time.Duration // by which the authority's clock is ahead of the monotonic clock
	root   *pkitest.Authority
	err    error
	issued []time.Time // when certificates were issued, by the monotonic clock
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.jump).Round(0)
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.issued)
}

// Issue implements identity.Issuer. Like istiod it antedates certificates by two minutes.
func (w *world) Issue(context.Context, []*x509.Certificate, *pki.Pair) (
	*identity.IssuedCertificate, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	w.issued = append(w.issued, time.Now())
	template := pkitest.LeafTemplate("web", lifetime+w.skew)
	template.NotBefore = time.Now().Add(w.skew - 2*time.Minute)
	chain, key := w.root.Issue(w.t, template)
	pair, err := pki.ParsePair(pki.PEMInput{File: "chain", PEM: chain},
		pki.PEMInput{File: "key", PEM: key}, pki.UsageBoth)
	if err != nil {
		return nil, err
	}
	return &identity.IssuedCertificate{
		Pair: pair, Roots: roots(w.root), Obtained: time.Now().Add(w.jump),
	}, nil
}

// Files implements identity.Issuer.
func (w *world) Files() []string { return []string{"/token"} }

// fakeWatcher implements identity.Watcher for synctest bubbles, in which inotify cannot be used.
type fakeWatcher struct {
	mu      sync.Mutex
	changed func() // passed to the last call of Watch
}

func (f *fakeWatcher) Watch(_ []string, changed func()) (stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = changed
	return func() {}
}

func (f *fakeWatcher) change() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed()
}

func (f *fakeWatcher) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// inWorld runs a test with a new Manager and its fake environment (world) in a synctest bubble.
func inWorld(t *testing.T, test func(*world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, board: condition.NewRegistry()}
		w.root = pkitest.NewAuthority(t, "root", nil)
		w.start(identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: w})
		test(w)
	})
}

func (w *world) start(settings identity.Settings) {
	w.Manager = identity.New(identity.Options{
		Settings: settings, Conditions: w.board, Now: w.now,
		Watcher: &w.watcher,
	})
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
}

// pass advances the bubble's clock by d and waits until all goroutines block.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// expect checks the number of certificates issued so far and the codes of the conditions.
func (w *world) expect(when string, issued int, codes ...string) {
	w.t.Helper()
	if got := w.count(); got != issued {
		w.t.Errorf("%s: %d certificates issued, want %d", when, got, issued)
	}
	var got []string
	for _, c := range w.board.Conditions() {
		got = append(got, c.Code)
	}
	slices.Sort(got)
	if !slices.Equal(got, codes) {
		w.t.Errorf("%s: conditions %v, want %v", when, w.board.Conditions(), codes)
	}
}

// valid checks that the published certificate is valid by the authority's clock.
func (w *world) valid(when string) {
	w.t.Helper()
	for _, about := range w.Secrets() {
		now := time.Now().Add(w.skew)
		if about.Name == identity.DefaultSecret && !now.Before(about.NotAfter) {
			w.t.Errorf("%s: the certificate expired at %v, it is %v", when, about.NotAfter, now)
		}
	}
}

func TestRenewal_AtHalfOfTheLifetime(t *testing.T) {
	inWorld(t, func(w *world) {
		w.expect("start", 1)
		about := w.Secrets()
		if len(about) != 2 || about[1].Renewal.Sub(w.now()) != lifetime/2 {
			t.Errorf("secrets: %+v", about)
		}
		w.pass(lifetime/2 - time.Second)
		w.expect("before half of it", 1)
		w.pass(2 * time.Second)
		w.expect("after half of it", 2)
		w.pass(5 * lifetime / 2)
		w.expect("five halves later", 7)
	})
}

func TestRenewal_JitterSpreads(t *testing.T) {
	inWorld(t, func(w *world) {
		w.Configure(identity.Settings{Identity: config.Identity{GraceRatio: 0.5, GraceJitter: 0.1}, Issuer: w})
		synctest.Wait()
		seen := map[time.Duration]bool{}
		for range 20 {
			before := w.count()
			for w.count() == before {
				w.pass(time.Minute)
			}
			w.mu.Lock()
			gap := w.issued[before].Sub(w.issued[before-1]).Round(time.Minute)
			w.mu.Unlock()
			seen[gap] = true
			if gap < 4*lifetime/10-time.Minute || gap > 6*lifetime/10+time.Minute {
				t.Errorf("renewed after %v", gap)
			}
		}
		if len(seen) < 5 {
			t.Errorf("20 renewals after %d different times", len(seen))
		}
	})
}

// Attempts continue while the authority is unavailable, also after the certificate has expired.
func TestRenewal_RetriesUntilExpiryAndBeyond(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.err = errors.New("the authority is unavailable") })
		w.pass(lifetime / 2)
		w.expect("due", 1)
		w.pass(time.Minute)
		w.expect("late", 1, identity.CodeNotRenewed)
		if got := w.board.Conditions()[0].Sentence; got !=
			"default: the authority is unavailable; the current one expires in 11 hours" {
			t.Errorf("sentence: %s", got)
		}
		w.pass(3 * lifetime / 10)
		w.valid("after 80 %")
		w.set(func() { w.err = nil })
		w.pass(time.Minute)
		w.expect("it is back", 2)
		w.set(func() { w.err = errors.New("the authority is unavailable") })
		w.pass(lifetime + time.Minute)
		w.expect("for too long", 2, identity.CodeExpired)
		w.set(func() { w.err = nil })
		w.pass(time.Minute)
		w.expect("it is back again", 3)
	})
}

func TestRenewal_AChangedFileIsTriedAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.err = errors.New("the token expired") })
		w.pass(lifetime/2 + time.Hour)
		w.set(func() { w.err = nil })
		w.watcher.change()
		synctest.Wait()
		w.expect("new token", 2)
		w.watcher.change()
		synctest.Wait()
		w.expect("another, without need", 2)
	})
}

func TestRenewal_FirstAttemptFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, board: condition.NewRegistry()}
		w.root, w.err = pkitest.NewAuthority(t, "root", nil), errors.New("no route")
		w.start(identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: w})
		w.pass(time.Minute)
		w.expect("away", 0, identity.CodeUnavailable)
		w.set(func() { w.err = nil })
		w.pass(time.Minute)
		w.expect("back", 1)
	})
}

func TestRenewal_TheClockJumps(t *testing.T) {
	for name, c := range map[string]struct {
		jump  time.Duration
		after int // certificates issued until 90 seconds after the jump
	}{
		"an hour ahead, before half":   {time.Hour, 1},
		"an hour back":                 {-time.Hour, 1},
		"suspended over half":          {lifetime/2 + time.Hour, 2},
		"suspended for longer than it": {2 * lifetime, 2},
		"two days back":                {-2 * lifetime, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.pass(time.Hour)
				w.set(func() {
					w.jump = c.jump
					if c.jump > time.Hour { // the machine was suspended, the authority was not
						w.skew = c.jump
					}
				})
				w.pass(90 * time.Second)
				if got := w.count(); got != c.after {
					t.Errorf("%d certificates, want %d", got, c.after)
				}
				for range 100 {
					w.pass(lifetime / 50)
					w.valid("later")
				}
				if got := w.count(); got > c.after+5 {
					t.Errorf("%d certificates in two lifetimes", got)
				}
			})
		})
	}
}

// The time of the renewal has no monotonic clock reading: with one, Go would compare it by a clock
// that stops while the machine is suspended. The test runs outside of a synctest bubble, where
// times have no such reading.
func TestRenewal_IsDueByTheWallClock(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, options *identity.Options) {
		options.Settings = identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: &lateIssuer{answer: &identity.IssuedCertificate{
			Pair: issuePair(t, r.root, lifetime), Roots: roots(r.root), Obtained: time.Now(),
		}}}
	})
	r.await("a certificate", func() bool { return r.secret(identity.DefaultSecret) != nil })
	if at := r.Secrets()[1].Renewal.String(); strings.Contains(at, "m=") {
		t.Errorf("due at %s", at)
	}
}

// If this host's clock is so far ahead of the authority's that each new certificate appears
// expired, certificates are used and renewed at the usual rate, and a condition reports the expiry.
func TestRenewal_ClocksDiffer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.skew = -lifetime - time.Hour })
		w.pass(lifetime/2 + time.Minute)
		w.expect("by this clock expired", 2, identity.CodeExpired)
		w.pass(lifetime + time.Hour)
		w.expect("no storm of requests", 4, identity.CodeExpired)
	})
}

func TestRenewal_ReconfigurationKeepsTheCertificate(t *testing.T) {
	inWorld(t, func(w *world) {
		w.pass(time.Hour)
		w.Configure(identity.Settings{Identity: config.Identity{GraceRatio: 0.25}, Issuer: w})
		w.pass(lifetime / 2)
		w.expect("renewed later", 1)
		w.pass(lifetime / 4)
		w.expect("at a quarter", 2)
	})
}

// After a reboot while the authority is unavailable, the agent uses the sealed certificate.
func TestRenewal_KeptOverAReboot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sealed")
	inWorld(t, func(w *world) {
		sealed, err := identity.NewSealedStore(path, "spiffe://cluster.local/ns/default/sa/web",
			make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		settings := identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: w, Sealed: sealed}
		w.start(settings)
		w.expect("first run", 2)
		before := w.Secrets()[1].Serial
		w.pass(lifetime / 4)
		w.set(func() { w.err = errors.New("the authority is unavailable") })
		w.start(settings)
		if after := w.Secrets()[1].Serial; after != before {
			t.Errorf("serial %q, before the reboot %q", after, before)
		}
		w.set(func() { w.err = nil })
		w.pass(lifetime/4 - 2*time.Minute)
		w.expect("not due", 2)
		w.pass(4 * time.Minute)
		if w.count() < 3 {
			t.Error("not renewed at half of the lifetime")
		}
	})
}

// A machine boots with its clock ahead while the authority is unreachable, so that its stored
// certificate appears expired. Once the clock is corrected, the certificate is used, although no
// other event occurs.
func TestRenewal_KeptWhileTheClockIsAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sealed")
	inWorld(t, func(w *world) {
		sealed, err := identity.NewSealedStore(path, "spiffe://cluster.local/ns/default/sa/web",
			make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		settings := identity.Settings{Identity: config.Identity{GraceRatio: 0.5}, Issuer: w, Sealed: sealed}
		w.start(settings)
		before := w.Secrets()[1].Serial
		w.set(func() { w.err, w.jump = errors.New("the authority is unavailable"), 2*lifetime })
		w.start(settings)
		w.pass(time.Minute)
		w.expect("the clock is ahead", 2, identity.CodeExpired)
		w.set(func() { w.jump = 0 })
		w.pass(2 * time.Minute)
		w.expect("the clock is right", 2, identity.CodeNotRenewed)
		if after := w.Secrets()[1].Serial; after != before {
			t.Errorf("serial %q, before the reboot %q", after, before)
		}
		w.valid("the clock is right")
	})
}
