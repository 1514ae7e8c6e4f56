package pki

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
)

// maxTokenBytes bounds the length of a token. HTTP/2 servers accept only shorter headers anyway.
const maxTokenBytes = 64 << 10

// tokenText contains the characters that may occur in a token.
const tokenText = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."

// MaxTokenBytes bounds the size of a file with a token, in bytes.
const MaxTokenBytes = 64 << 10

// Token is a JSON Web Token whose signature was not verified, which is the task of the CA that
// receives it.
type Token struct {
	Raw    string
	Expiry time.Time // zero: never
}

// ParseToken parses a token and its expiry, without surrounding white space.
func ParseToken(file string, text []byte) (Token, error) {
	in := PEMInput{File: file}
	malformed := func(detail string) (Token, error) {
		return Token{}, in.problem(ErrNotJWT, "write the token as the issuer returned it",
			"%s", detail)
	}
	if len(text) > maxTokenBytes {
		return malformed(fmt.Sprintf("the file has %d bytes, more than any token", len(text)))
	}
	raw := strings.TrimSpace(string(text))
	parts := strings.Split(raw, ".")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || strings.Trim(raw, tokenText) != "" {
		return malformed("the file has no JSON Web Token")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return malformed("the token's payload is not base64")
	}
	var claims struct {
		Expiry *float64 `json:"exp"` // NumericDate: seconds, possibly with a fraction
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return malformed("the token's payload is not JSON")
	}
	token := Token{Raw: raw}
	if claims.Expiry != nil {
		if math.Abs(*claims.Expiry) > math.MaxInt32*1000 {
			return malformed("the token's expiry is out of range")
		}
		token.Expiry = time.Unix(int64(*claims.Expiry), 0)
	}
	return token, nil
}

// CheckTime returns a Problem if the token has expired at now.
func (t Token) CheckTime(file string, now time.Time) error {
	if t.Expiry.IsZero() || now.Before(t.Expiry) {
		return nil
	}
	return PEMInput{File: file}.problem(ErrExpired, "write a new token into the file",
		"the token expired on %s UTC", t.Expiry.UTC().Format(time.DateTime))
}
