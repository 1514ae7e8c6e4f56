package pki

import "errors"

// The kinds of Problem.
var (
	ErrNotPEM      = errors.New("the text is not PEM")
	ErrNoKey       = errors.New("there is no private key")
	ErrMismatch    = errors.New("key and certificate do not match")
	ErrExpired     = errors.New("the certificate or token has expired")
	ErrNotYetValid = errors.New("the certificate or token is not yet valid")
	ErrKeyUsage    = errors.New("the certificate has the wrong key usage")
	ErrWeakKey     = errors.New("the key is too weak")
	ErrChainOrder  = errors.New("the certificate chain is in the wrong order")
	ErrNotJWT      = errors.New("the token is not a JSON Web Token")
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
