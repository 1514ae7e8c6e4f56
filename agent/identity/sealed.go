package identity

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"outrider.org/outrider/agent/identity/pki"
)

// minSealKey is the minimum length of a credential from which a key is derived. sealKey is the
// length of each key in a credential with several keys (see outrider-seal). Both are in bytes.
const (
	minSealKey = 16
	sealKey    = 32
)

// sealPurpose is the HKDF info string. It separates this use of the credential from other uses, and
// contains the version of the format.
const sealPurpose = "outrider sealed certificate 1"

// SealedStore stores the last issued certificate across reboots, encrypted with AES-256-GCM under a
// key from a systemd credential. See NewSealedStore.
type SealedStore struct {
	path  string
	owner string
	keys  []cipher.AEAD // the first one encrypts; all are tried to decrypt
}

// sealedContent is the content of the file before encryption, as JSON.
type sealedContent struct {
	Chain, Key, Roots []byte
	Obtained          time.Time
}

// NewSealedStore returns a store in the file at path, encrypted with the content of the credential
// "seal": one key, or several of sealKey bytes, the newest first. owner names the identity and the
// authority; a certificate that was stored for another owner is not used.
func NewSealedStore(path, owner string, credential []byte) (*SealedStore, error) {
	if len(credential) < minSealKey {
		return nil, fmt.Errorf("the systemd credential \"seal\" has %d bytes; at least %d are "+
			"needed",
			len(credential), minSealKey)
	}
	secrets := [][]byte{credential}
	if len(credential)%sealKey == 0 {
		secrets = slices.Collect(slices.Chunk(credential, sealKey))
	}
	s := &SealedStore{path: path, owner: owner}
	for _, secret := range secrets {
		key, err := hkdf.Key(sha256.New, secret, nil, sealPurpose, 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, aead)
	}
	return s, nil
}

// Save replaces the stored certificate.
func (s *SealedStore) Save(issued *IssuedCertificate) error {
	plain, err := json.Marshal(sealedContent{
		Chain: issued.Pair.ChainPEM, Key: issued.Pair.KeyPEM,
		Roots: pki.EncodeCertificates(issued.Roots), Obtained: issued.Obtained,
	})
	if err != nil {
		return fmt.Errorf("cannot store the certificate: %w", err)
	}
	//nolint:gosec // no nonce: this AEAD makes its own
	sealed := s.keys[0].Seal(nil, nil, plain, []byte(s.owner))
	clear(plain)
	if err := renameio.WriteFile(s.path, sealed, 0o600); err != nil {
		return fmt.Errorf("cannot store the certificate: %w", err)
	}
	return nil
}

// Load returns the stored certificate, even if it has expired: the clock may be wrong at boot and
// be corrected later. It returns nil without an error if none is stored, and an error if the stored
// one cannot be used.
func (s *SealedStore) Load() (*IssuedCertificate, error) {
	text, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // none is stored
	}
	if err != nil {
		return nil, err
	}
	var plain []byte
	for _, key := range s.keys {
		if plain, err = key.Open(nil, nil, text, []byte(s.owner)); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s was sealed by another machine or for another identity, "+
			"or is damaged; a new certificate is requested", s.path)
	}
	defer clear(plain)
	var last sealedContent
	if err := json.Unmarshal(plain, &last); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	pair, err := pki.ParsePair(pki.PEMInput{File: s.path, PEM: last.Chain},
		pki.PEMInput{File: s.path, PEM: last.Key}, pki.UsageBoth)
	if err != nil {
		return nil, err
	}
	roots, err := pki.ParseRoots(pki.PEMInput{File: s.path, PEM: last.Roots}, time.Time{})
	if err != nil {
		return nil, err
	}
	return &IssuedCertificate{Pair: pair, Roots: roots, Obtained: last.Obtained}, nil
}
