package pki

import (
	"context"
	"fmt"
	"time"

	"outrider.org/outrider/agent/readfile"
)

// BearerToken sends the token in a file with each gRPC call. It reads the file for each attempt of
// a call. It implements credentials.PerRPCCredentials.
type BearerToken struct {
	File      string
	Plaintext bool // send the token also over connections without TLS
}

// Token reads the file. It returns an error if the token has expired, because the server would only
// report that authentication failed.
func (b BearerToken) Token() (Token, error) {
	text, err := readfile.Read(b.File, MaxTokenBytes)
	if err != nil {
		return Token{}, fmt.Errorf("cannot read token: %w", err)
	}
	token, err := ParseToken(b.File, text)
	if err != nil {
		return Token{}, err
	}
	return token, token.CheckTime(b.File, time.Now())
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b BearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b.Token()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token.Raw}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b BearerToken) RequireTransportSecurity() bool { return !b.Plaintext }
