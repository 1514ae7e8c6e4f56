package pki

import "errors"

// The kinds of Problem.
var (
	ErrNotPEM      = errors.New("not PEM")
	ErrNoKey       = errors.New("no private key")
	ErrMismatch    = errors.New("key and certificate do not match")
	ErrExpired     = errors.New("expired")
	ErrNotYetValid = errors.New("not yet valid")
	ErrKeyUsage    = errors.New("wrong key usage")
	ErrWeakKey     = errors.New("too weak")
	ErrChainOrder  = errors.New("chain in the wrong order")
	ErrNotJWT      = errors.New("not a JSON Web Token")
)

// Problem is a problem of a file or of a response of an authority.
type Problem struct {
	Kind   error  // one of the errors above
	File   string // path, or description of the response
	Detail string
	Fix    string // what a person can do
}

// Error implements error: "FILE: detail; fix".
func (p *Problem) Error() string { return p.File + ": " + p.Detail + "; " + p.Fix }

// Unwrap returns the kind.
func (p *Problem) Unwrap() error { return p.Kind }
