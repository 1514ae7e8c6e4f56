package validate

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/jwks"
)

const (
	maxTokenRules   = 4096
	maxSpacedClaims = 64
	maxKeySetURI    = 2048
)

// claimHeader matches names of headers that Istio accepts for a claim.
var claimHeader = regexp.MustCompile("^[-_A-Za-z0-9]+$")

func (c *checker) requestAuthentication(r *security.RequestAuthentication) {
	c.targeted(r)
	if len(r.JwtRules) == 0 {
		c.warn("jwtRules", "there are none, so the RequestAuthentication has no effect",
			"add a rule, or remove the object")
	}
	c.most("jwtRules", len(r.JwtRules), maxTokenRules)
	for i, rule := range r.JwtRules {
		c.tokenRule(fmt.Sprintf("jwtRules[%d]", i), rule)
	}
}

func (c *checker) tokenRule(field string, r *security.JWTRule) {
	c.notEmpty(field+".audiences", r.Audiences)
	c.notEmpty(field+".fromParams", r.FromParams)
	c.notEmpty(field+".fromCookies", r.FromCookies)
	c.notEmpty(field+".spaceDelimitedClaims", r.SpaceDelimitedClaims)
	c.most(field+".spaceDelimitedClaims", len(r.SpaceDelimitedClaims), maxSpacedClaims)
	c.keySet(field, r)
	for i, from := range r.FromHeaders {
		at := fmt.Sprintf("%s.fromHeaders[%d]", field, i)
		c.tokenHeader(at+".name", from.GetName())
		if !isHeaderText(from.GetPrefix()) {
			c.fail(at+".prefix", "has a line break or a zero byte", "remove it")
		}
	}
	if r.OutputPayloadToHeader != "" {
		c.tokenHeader(field+".outputPayloadToHeader", r.OutputPayloadToHeader)
	}
	for i, to := range r.OutputClaimToHeaders {
		at := fmt.Sprintf("%s.outputClaimToHeaders[%d]", field, i)
		if to.GetClaim() == "" {
			c.fail(at+".claim", "a claim without a name", "write its name")
		}
		if !claimHeader.MatchString(to.GetHeader()) {
			c.fail(at+".header", fmt.Sprintf("%q cannot be the header of a claim", to.GetHeader()),
				"write letters, digits, - and _")
		}
	}
	c.duration(field+".timeout", r.Timeout, false)
}

func isHeaderText(text string) bool { return !strings.ContainsAny(text, "\x00\r\n") }

// tokenHeader checks the name of a header only as strictly as Istio and Envoy do.
func (c *checker) tokenHeader(field, name string) {
	switch {
	case name == "":
		c.fail(field, "a header without a name", "write its name")
	case !isHeaderText(name):
		c.fail(field, fmt.Sprintf("%q is no header's name", name), "write letters, digits and -")
	case !headerName.MatchString(name):
		c.warn(field, fmt.Sprintf("%q is no header's name: no request has it", name),
			"write letters, digits and -")
	}
}

// keySet checks the source of the keys of a rule.
func (c *checker) keySet(field string, r *security.JWTRule) {
	switch {
	case r.Jwks != "" && r.JwksUri != "":
		c.fail(field+".jwks", "is set together with jwksUri", "remove one of them")
	case r.Issuer == "" && r.JwksUri == "":
		c.fail(field+".issuer", "there is neither an issuer nor a jwksUri",
			"write the iss of the tokens")
	case r.Jwks != "":
		c.inlineKeys(field+".jwks", r.Jwks)
	case r.JwksUri != "":
		c.keySetURI(field+".jwksUri", r.JwksUri)
	case !strings.HasPrefix(r.Issuer, "https://") && !strings.HasPrefix(r.Issuer, "http://"):
		c.warn(field+".issuer", "is no URL, so its key set cannot be discovered: all of its "+
			"tokens are refused", "write jwksUri or jwks")
	}
}

func (c *checker) keySetURI(field, text string) {
	c.longest(field, text, maxKeySetURI)
	uri, err := url.Parse(text)
	if err == nil && uri.Port() != "" {
		_, err = strconv.ParseUint(uri.Port(), 10, 16)
	}
	switch {
	case err != nil || !slices.Contains([]string{"http", "https"}, uri.Scheme):
		c.fail(field, "is no URL with http:// or https://", "write the URL of the key set")
	case uri.Scheme == "http":
		c.warn(field, "with http:// anybody on the way can replace the keys, and so admit "+
			"any token", "write https://")
	}
}

func (c *checker) inlineKeys(field, text string) {
	found, err := jwks.ParseInlineKeySet(text)
	switch {
	case err != nil:
		c.fail(field, err.Error(), "write the JSON Web Key Set of the issuer")
	case found.IsSingleKey:
		c.warn(field, `is one key and no set: all tokens are refused`, `write {"keys": [KEY]}`)
	case found.HasPrivateKeys:
		c.warn(field, "has a private or symmetric key, with which others can sign tokens",
			"write the public key")
	}
}
