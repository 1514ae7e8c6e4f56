package auth

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"outrider.org/outrider/agent/jwt"
	"outrider.org/outrider/agent/repeat"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/join"
)

// Issuer is a configured issuer of tokens. The subject of its tokens has the form
// system:serviceaccount:NAMESPACE:ACCOUNT.
type Issuer struct {
	Name     string // required value of the claim iss
	Audience string // required value in the claim aud
	// file with the key set (JWKS), which may be replaced at any time
	KeyFile string
}

const (
	maxKeySetBytes = 128 << 10
	maxEarly       = time.Minute // tolerance for an issuer's clock that is ahead
)

// ofToken returns the identity in a client's token, and a description of the token for logs.
func (a *Authenticator) ofToken(settings *Settings, client *xds.Peer) (Identity, string, error) {
	token, fault := jwt.Parse(client.Token, jwt.AsymmetricAlgorithms)
	if fault != jwt.NoFault {
		return Identity{}, "", fault
	}
	expiry, err := checkTime(token, time.Now())
	if err != nil {
		return Identity{}, "", err
	}
	if settings.JoinKeyFile != "" && token.Issuer() == join.Issuer {
		id, err := a.ofJoinToken(settings, client, token)
		return id, "join token " + join.TokenID(token), err
	}
	known := false
	for _, issuer := range settings.Issuers {
		if issuer.Name != token.Issuer() {
			continue
		}
		known = true
		if err = issuer.verify(token, settings.keys); err == nil {
			return a.ofClaims(token)
		}
	}
	switch {
	case settings.TokenReviewer != nil && !known:
		subject, err := settings.reviews.review(settings.TokenReviewer, client.ClientKey(),
			client.Token,
			expiry)
		if err != nil {
			return Identity{}, "", err
		}
		id, err := ofSubject(subject, a.domains())
		return id, "token", err
	case !known:
		return Identity{}, "", fmt.Errorf("[auth] jwt_issuers has no issuer %q",
			ShortenForLog(token.Issuer()))
	}
	return Identity{}, "", err
}

// ofClaims returns the identity in the claims of a verified token.
func (a *Authenticator) ofClaims(token *jwt.Token) (Identity, string, error) {
	subject, _ := token.Claims["sub"].(string)
	id, err := ofSubject(subject, a.domains())
	return id, "token", err
}

// joinKeys returns the public keys of join tokens.
func (s *Settings) joinKeys() (jwt.Keys, error) {
	keys, err := s.keys.get(s.JoinKeyFile, join.ParseKeys)
	if err != nil {
		return jwt.Keys{}, fmt.Errorf("cannot use the keys of [auth] join_key_file: %w", err)
	}
	return keys, nil
}

// joinLimits bounds the log lines about accepted join tokens, for each token.
var joinLimits = repeat.Limits{PerClass: 60, PerSubject: 60}

// ofJoinToken verifies a join token, logs its use and returns the identity in it.
func (a *Authenticator) ofJoinToken(settings *Settings, client *xds.Peer, token *jwt.Token) (
	Identity, error) {
	keys, err := settings.joinKeys()
	if err != nil {
		return Identity{}, &unavailable{err}
	}
	if err := join.Verify(token, keys, settings.JoinNotBefore, time.Now()); err != nil {
		return Identity{}, err
	}
	id, _, err := a.ofClaims(token)
	if err != nil {
		return Identity{}, err
	}
	omitted, ok := a.joined.Allow(time.Now(), join.TokenID(token), "", joinLimits)
	if ok {
		a.log.Info("accepted join token", "token", join.TokenID(token), "identity", id.String(),
			"caller", client.Address, "omitted", omitted)
	}
	return id, nil
}

// verify returns the reason why a token of the issuer is invalid; nil if it is valid.
func (i Issuer) verify(token *jwt.Token, files *keyFiles) error {
	if !slices.Contains(token.Audiences(), i.Audience) {
		return fmt.Errorf("the token is not for audience %q", i.Audience)
	}
	keys, err := files.get(i.KeyFile, parseKeySet)
	if err != nil {
		return &unavailable{fmt.Errorf("cannot read the keys of issuer %s: %w", i.Name, err)}
	}
	if fault := token.Verify(keys); fault != jwt.NoFault {
		return fault
	}
	return nil
}

// checkTime returns the expiry of a token. It returns an error if the token is not valid at the
// time now, or has no expiry.
func checkTime(token *jwt.Token, now time.Time) (expiry time.Time, err error) {
	at, ok := token.Claims["exp"].(float64)
	if !ok {
		return time.Time{}, errors.New("the token has no expiry")
	}
	if float64(now.Unix()) >= at {
		return time.Time{}, errors.New("the token has expired")
	}
	if from, ok := token.Claims["nbf"].(float64); ok && float64(now.Add(maxEarly).Unix()) < from {
		return time.Time{}, errors.New("the token is not valid yet")
	}
	return time.Unix(int64(min(at, 1<<40)), 0), nil
}
