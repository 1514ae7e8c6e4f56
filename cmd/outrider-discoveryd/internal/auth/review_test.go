package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/xds"
)

// TestReview_Cache: a successful review is cached for a minute, or until the token expires.
// Refusals and failures are not cached.
func TestReview_Cache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, failure := 0, error(nil)
		a := New(Settings{Require: RequireAny, TokenReviewer: func(context.Context, string) (string, error) {
			calls++
			return "system:serviceaccount:a:web", failure
		}}, domains, slog.New(slog.DiscardHandler))
		of := newIssuer(t)
		admit := func(token string) codes.Code {
			_, err := a.Admit(&xds.Peer{TLS: true, Token: token}, nodeOf("a", "web", ""))
			if err != nil && strings.Contains(err.Error(), "internal") {
				t.Errorf("the client learns the cause: %v", err)
			}
			return status.Code(err)
		}
		expect := func(token string, code codes.Code, want int) {
			t.Helper()
			if got := admit(token); got != code || calls != want {
				t.Errorf("%v after %d reviews, want %v, %d", got, calls, code, want)
			}
		}
		long := of.token(nil)
		short := of.token(claims{"exp": time.Now().Add(10 * time.Second).Unix()})
		expect(long, codes.OK, 1)
		expect(short, codes.OK, 2)
		failure = errDown
		time.Sleep(9 * time.Second)
		expect(long, codes.OK, 2)
		expect(short, codes.OK, 2)
		time.Sleep(time.Second)
		expect(short, codes.Unauthenticated, 2) // the token has expired
		time.Sleep(50 * time.Second)
		expect(long, codes.Unavailable, 3)
		failure = errors.New("the API server refuses the token")
		expect(long, codes.Unauthenticated, 4)
		failure = nil
		expect(long, codes.OK, 5)
		expect(long, codes.OK, 5)
		a.Configure(*a.settings.Load())
		expect(long, codes.OK, 6)
	})
}

// TestReview_HangingServer: while the API server does not respond, new tokens are refused after a
// time-out. Cached tokens are accepted at once.
func TestReview_HangingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := false
		a := New(Settings{Require: RequireAny, TokenReviewer: func(ctx context.Context, _ string) (string, error) {
			if hangs {
				<-ctx.Done()
				return "", &unavailable{ctx.Err()}
			}
			return "system:serviceaccount:a:web", nil
		}}, domains, slog.New(slog.DiscardHandler))
		of := newIssuer(t)
		known := &xds.Peer{TLS: true, Token: of.token(nil)}
		if _, err := a.Admit(known, nodeOf("a", "", "")); err != nil {
			t.Fatal(err)
		}
		hangs = true
		refused := make(chan error)
		for i := range 2 * maxConcurrent {
			client := &xds.Peer{TLS: true, Token: of.token(claims{"jti": fmt.Sprint(i)})}
			go func() {
				_, err := a.Admit(client, nodeOf("a", "", ""))
				refused <- err
			}()
		}
		synctest.Wait()
		begun := time.Now()
		if _, err := a.Admit(known, nodeOf("a", "", "")); err != nil || !time.Now().Equal(begun) {
			t.Errorf("a known token waits %v: %v", time.Since(begun), err)
		}
		for range 2 * maxConcurrent {
			if err := <-refused; status.Code(err) != codes.Unavailable {
				t.Error(err)
			}
		}
		if took := time.Since(begun); took > 2*reviewTime {
			t.Errorf("refused after %v", took)
		}
	})
}

// TestReview_CacheIsBounded: the cache does not exceed its maximum size.
func TestReview_CacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReviews()
		review := func(context.Context, string) (string, error) { return "x", nil }
		for i := range 2 * maxReviewed {
			if _, err := r.review(review, admission.ClientKey{}, fmt.Sprint(i),
				time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		if len(r.cached) != maxReviewed {
			t.Errorf("%d results", len(r.cached))
		}
		time.Sleep(reviewedFor)
		if _, err := r.review(review, admission.ClientKey{}, "new",
			time.Now().Add(time.Hour)); err != nil ||
			len(r.cached) != 1 {
			t.Errorf("%d results, %v", len(r.cached), err)
		}
	})
}

// TestReview_OfOneAddressIsBounded: clients of one address send tokens that the API server refuses,
// and then tokens for which it does not respond. The tokens of another address are still reviewed,
// and cached tokens are still accepted.
func TestReview_OfOneAddressIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, calls := newReviews(), atomic.Int64{}
		refuse := func(context.Context, string) (string, error) {
			calls.Add(1)
			return "", errors.New("the API server refuses the token")
		}
		accept := func(context.Context, string) (string, error) { return "x", nil }
		hang := func(ctx context.Context, _ string) (string, error) {
			calls.Add(1)
			<-ctx.Done()
			return "", ctx.Err()
		}
		expiry := time.Now().Add(time.Hour)
		bad, good := admission.KeyOfUser(1), admission.KeyOfUser(2)
		if _, err := r.review(accept, bad, "known", expiry); err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			_, err := r.review(refuse, bad, fmt.Sprint(i), expiry)
			if _, limited := errors.AsType[*unavailable](err); err == nil ||
				limited != (i >= refusedAtOnce) {
				t.Fatalf("token %d: %v", i, err)
			}
		}
		if calls.Load() != refusedAtOnce {
			t.Errorf("%d reviews", calls.Load())
		}
		if _, err := r.review(accept, bad, "known", expiry); err != nil {
			t.Errorf("a known token of that address: %v", err)
		}
		if _, err := r.review(accept, good, "good", expiry); err != nil {
			t.Errorf("another address: %v", err)
		}
		time.Sleep(time.Minute)
		expiry = time.Now().Add(time.Hour)
		calls.Store(0)
		var all sync.WaitGroup
		for i := range 2 * maxConcurrent {
			all.Go(func() { _, _ = r.review(hang, bad, fmt.Sprint(i), expiry) })
		}
		synctest.Wait()
		if calls.Load() != maxOfAddress {
			t.Errorf("%d reviews at a time", calls.Load())
		}
		begun := time.Now()
		if _, err := r.review(accept, good, "other", expiry); err != nil ||
			!time.Now().Equal(begun) {
			t.Errorf("another address meanwhile: %v after %v", err, time.Since(begun))
		}
		all.Wait()
	})
}

// TestAddresses_AreBounded: addresses beyond maxAddresses share one state. Once earlier addresses
// are idle, new addresses have their own states again.
func TestAddresses_AreBounded(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		a := newAddresses()
		for i := range uint32(maxAddresses) {
			a.of(admission.KeyOfUser(i)).refused()
		}
		if a.of(admission.KeyOfUser(maxAddresses)) != a.other || len(a.known) != maxAddresses {
			t.Errorf("%d addresses", len(a.known))
		}
		time.Sleep(time.Minute)
		if a.of(admission.KeyOfUser(maxAddresses)) == a.other || len(a.known) != 1 {
			t.Errorf("%d addresses after a minute", len(a.known))
		}
	})
}
