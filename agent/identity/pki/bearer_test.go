package pki_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"outrider.org/outrider/agent/identity/pki"
)

func TestBearer_ReadsTokenForEachCall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	bearer := pki.BearerToken{File: file}
	for _, test := range []struct {
		payload string
		want    error
	}{{`{}`, nil}, {`{"exp":2000}`, pki.ErrExpired}, {`{"exp":4000000000}`, nil}} {
		if err := os.WriteFile(file, []byte(token(test.payload)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		metadata, err := bearer.GetRequestMetadata(t.Context())
		if !errors.Is(err, test.want) ||
			err == nil && metadata["authorization"] != "Bearer "+token(test.payload) {
			t.Errorf("%s: %v, %v", test.payload, metadata, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := bearer.Token(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if !bearer.RequireTransportSecurity() {
		t.Error("the token may be sent without TLS")
	}
}
