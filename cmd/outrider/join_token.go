package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/jwt"
	"outrider.org/outrider/agent/readfile"
)

const (
	// tokenAudience is the audience that the token must have.
	tokenAudience = "istio-ca"
	// earlyToken is the tolerance for a clock of the token's issuer that is ahead.
	earlyToken = time.Minute
)

// joinToken is a token for a service account of the mesh. This command cannot verify its signature.
type joinToken struct{ text, namespace, account string }

// readJoinToken reads a token from a file, and checks its audience, its subject and its times.
func readJoinToken(file string, now time.Time) (joinToken, error) {
	text, err := readfile.Read(file, pki.MaxTokenBytes)
	if err != nil {
		return joinToken{}, fmt.Errorf("cannot read the token: %w", err)
	}
	plain, err := pki.ParseToken(file, text)
	if err != nil {
		return joinToken{}, err
	}
	parsed, fault := jwt.Parse(plain.Raw, jwt.AsymmetricAlgorithms)
	if fault != jwt.NoFault {
		return joinToken{}, fmt.Errorf("%s: %w; write the token as the issuer returned it", file, fault)
	}
	subject, _ := parsed.Claims["sub"].(string)
	of := strings.Split(subject, ":")
	if len(of) != 4 || of[0] != "system" || of[1] != "serviceaccount" || of[2] == "" || of[3] == "" {
		return joinToken{}, fmt.Errorf("%s: the token is for %q, not for a service account; get one "+
			"from \"outrider-discoveryd token --service-account NAMESPACE/NAME\" or \"kubectl create "+
			"token\"", file, subject)
	}
	if !slices.Contains(parsed.Audiences(), tokenAudience) {
		return joinToken{}, fmt.Errorf("%s: the token is for audience %q, not %q; get one with "+
			"\"kubectl create token %s -n %s --audience %[3]s\"", file,
			strings.Join(parsed.Audiences(), ", "), tokenAudience, of[3], of[2])
	}
	return joinToken{plain.Raw, of[2], of[3]}, checkTokenTime(file, parsed.Claims, now)
}

// checkTokenTime checks that a token is valid by the clock of this host.
func checkTokenTime(file string, claims map[string]any, now time.Time) error {
	at := func(claim string) (time.Time, bool) {
		seconds, ok := claims[claim].(float64)
		return time.Unix(int64(min(max(seconds, 0), 1<<40)), 0), ok
	}
	if expires, ok := at("exp"); ok && !now.Before(expires) {
		return fmt.Errorf("%s: the token expired on %s, and the clock of this host says %s; get a new "+
			"token, or set the clock (timedatectl set-ntp true)", file, utc(expires), utc(now))
	}
	for _, claim := range []string{"iat", "nbf"} {
		if from, ok := at(claim); ok && now.Add(earlyToken).Before(from) {
			return fmt.Errorf("%s: the token is valid from %s on, and the clock of this host says %s; "+
				"set the clock (timedatectl set-ntp true)", file, utc(from), utc(now))
		}
	}
	return nil
}

func utc(at time.Time) string { return at.UTC().Format(time.DateTime) + " UTC" }
