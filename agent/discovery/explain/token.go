package explain

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"github.com/go-jose/go-jose/v4"
)

// token is a JWT.
type token struct {
	text      string
	algorithm jose.SignatureAlgorithm
	key       string // its ID, "" if the token names none
	claims    map[string]any
}

// algorithms are those that Envoy verifies.
var algorithms = []jose.SignatureAlgorithm{jose.ES256, jose.ES384, jose.ES512, jose.HS256,
	jose.HS384, jose.HS512, jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.EdDSA}

// mostToken bounds the length of a token that is looked at, in bytes.
const mostToken = 64 << 10

// parseToken parses a token as Envoy does.
func parseToken(text string) (*token, tokenFault) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 || len(text) > mostToken {
		return nil, notThreeParts
	}
	var header struct {
		Algorithm *string `json:"alg"`
		Key       string  `json:"kid"`
	}
	t := &token{text: text}
	decoded, err := base64.RawURLEncoding.DecodeString(parts[0])
	switch {
	case err != nil:
		return nil, headerNoBase64
	case !json.Valid(decoded):
		return nil, headerNoJSON
	case json.Unmarshal(decoded, &header) != nil || header.Algorithm == nil:
		return nil, headerNoAlgorithm
	}
	t.algorithm, t.key = jose.SignatureAlgorithm(*header.Algorithm), header.Key
	if !slices.Contains(algorithms, t.algorithm) {
		return nil, headerAlgorithm
	}
	decoded, err = base64.RawURLEncoding.DecodeString(parts[1])
	switch {
	case err != nil:
		return nil, payloadNoBase64
	case json.Unmarshal(decoded, &t.claims) != nil:
		return nil, payloadNoJSON
	}
	if _, err = base64.RawURLEncoding.DecodeString(parts[2]); err != nil {
		return nil, signatureNoBase64
	}
	return t, valid
}

func (t *token) issuer() string {
	issuer, _ := t.claims["iss"].(string)
	return issuer
}

// audiences returns the audiences, a text or a list.
func (t *token) audiences() (all []string) {
	switch of := t.claims["aud"].(type) {
	case string:
		return []string{of}
	case []any:
		for _, one := range of {
			if text, ok := one.(string); ok {
				all = append(all, text)
			}
		}
	}
	return all
}

// check verifies a token for a provider, in Envoy's order. audiences replace the provider's if
// there are some.
func (t *token) check(p *jwtv3.JwtProvider, audiences []string) tokenFault {
	if p.Issuer != "" && t.issuer() != p.Issuer {
		return unknownIssuer
	}
	skew := float64(60)
	if p.ClockSkewSeconds > 0 {
		skew = float64(p.ClockSkewSeconds)
	}
	now := float64(time.Now().Unix())
	if from, ok := t.claims["nbf"].(float64); ok && now+skew < from {
		return earlyToken
	}
	if until, ok := t.claims["exp"].(float64); ok && until != 0 && now > until+skew {
		return expiredToken
	}
	if len(audiences) == 0 {
		audiences = p.Audiences
	}
	if len(audiences) > 0 && !slices.ContainsFunc(t.audiences(), func(of string) bool {
		return slices.ContainsFunc(audiences, func(one string) bool {
			return audience(one) == audience(of)
		})
	}) {
		return audienceNotAllowed
	}
	return t.verify(p)
}

// audience returns an audience without scheme and trailing slash, which Envoy does not compare.
func audience(text string) string {
	for _, scheme := range []string{"http://", "https://"} {
		if rest, ok := strings.CutPrefix(text, scheme); ok {
			text = rest
			break
		}
	}
	return strings.TrimSuffix(text, "/")
}

// verify verifies the signature with the keys of a provider that the token may be signed with.
func (t *token) verify(p *jwtv3.JwtProvider) tokenFault {
	set := p.GetLocalJwks().GetInlineString()
	if set == "" {
		set = string(p.GetLocalJwks().GetInlineBytes())
	}
	var keys struct{ Keys []json.RawMessage }
	if json.Unmarshal([]byte(set), &keys) != nil {
		return noKeys
	}
	usable, fault := 0, noMatchingKey
	signed, err := jose.ParseSignedCompact(t.text, []jose.SignatureAlgorithm{t.algorithm})
	for _, text := range keys.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) != nil {
			continue
		}
		usable++
		if key.KeyID != "" && t.key != "" && key.KeyID != t.key ||
			key.Algorithm != "" && key.Algorithm != string(t.algorithm) {
			continue
		}
		fault = verificationFailed
		if err != nil {
			continue
		}
		if _, failed := signed.Verify(key.Key); failed == nil {
			return valid
		}
	}
	if usable == 0 {
		return noKeys
	}
	return fault
}
