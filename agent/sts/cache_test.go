package sts

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

func TestToken_ReusesTokensUntilShortlyBeforeExpiry(t *testing.T) {
	r := start(t, "")
	exchanges := func(want int) {
		t.Helper()
		if got := len(r.google.received()); got != want {
			t.Errorf("%d exchanges, want %d", got, want)
		}
	}
	r.post(form(subject))
	r.post(form(subject))
	exchanges(1)
	other := form(subject)
	other.Set("scope", "other")
	r.post(other) // a request with another scope needs another exchange
	r.post(form("another subject"))
	exchanges(3)
	r.google.mu.Lock()
	r.google.lifetime = 8 * time.Second
	r.google.mu.Unlock()
	short := form("short")
	r.post(short)
	r.post(short)
	exchanges(4)
	parts.Eventually(t, time.Minute, "a new exchange after half of the lifetime", func() bool {
		r.post(short)
		return len(r.google.received()) == 5
	})
}

func TestToken_EqualRequestsShareAnExchange(t *testing.T) {
	r := start(t, "")
	r.google.hold = make(chan struct{})
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if status, body := r.post(form(subject)); status != 200 {
				t.Errorf("status %d, %v", status, body)
			}
		})
	}
	parts.Eventually(t, time.Minute, "an exchange", func() bool {
		return len(r.google.received()) == 1
	})
	close(r.google.hold)
	group.Wait()
	if got := len(r.google.received()); got != 1 {
		t.Errorf("%d exchanges", got)
	}
}

func TestToken_ServesTheFormerTokenWhileTheExchangeFails(t *testing.T) {
	calls := 0
	c := newCache(t.Context(), func(context.Context, Request) (Token, error) {
		if calls++; calls > 1 {
			return Token{}, errors.New("away")
		}
		return Token{AccessToken: "first", Expiry: time.Now().Add(3 * time.Minute)}, nil
	})
	request := Request{SubjectToken: subject}
	if _, err := c.get(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	for key, known := range c.tokens { // makes the tokens appear old enough to be refreshed
		known.issued = known.issued.Add(-time.Hour)
		c.tokens[key] = known
	}
	token, err := c.get(t.Context(), request)
	if err != nil || token.AccessToken != "first" || calls != 2 {
		t.Errorf("token %+v, error %v, calls %d", token, err, calls)
	}
	for key, known := range c.tokens {
		known.Expiry = time.Now().Add(usable / 2)
		c.tokens[key] = known
	}
	if token, err := c.get(t.Context(), request); err == nil {
		t.Errorf("an exchange failed, but the token is %+v", token)
	}
}

// Tokens must also expire while the machine is suspended. If two times have a monotonic reading, Go
// compares these, and the monotonic clock does not advance during suspend. An expiry must therefore
// have none.
func TestCache_TokensExpireByTheWallClock(t *testing.T) {
	c := newCache(t.Context(), func(context.Context, Request) (Token, error) {
		return Token{AccessToken: "x", Expiry: time.Now().Add(time.Hour)}, nil
	})
	token, err := c.get(t.Context(), Request{SubjectToken: subject})
	if at := token.Expiry.String() + c.list()[0].Expiry.String(); err != nil ||
		strings.Contains(at, "m=") {
		t.Errorf("expires at %s, error %v", at, err)
	}
}

func TestCache_IsBounded(t *testing.T) {
	c := newCache(t.Context(), func(_ context.Context, request Request) (Token, error) {
		n, err := strconv.Atoi(request.SubjectToken)
		return Token{AccessToken: "x",
				Expiry: time.Now().Add(time.Hour + time.Duration(n)*time.Second)},
			err
	})
	for i := range 2 * mostTokens {
		if _, err := c.get(t.Context(), Request{SubjectToken: strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	all := c.list()
	if len(all) != mostTokens || time.Until(all[0].Expiry) < time.Hour+mostTokens*time.Second/2 {
		t.Errorf("%d tokens, the first until %v", len(all), all[0].Expiry)
	}
}
