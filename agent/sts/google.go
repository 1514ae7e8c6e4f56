package sts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// GoogleExchanger exchanges a JWT for a federated token of Google's Security Token Service. If an
// account is configured, it then exchanges the federated token for an access token of that service
// account.
type GoogleExchanger struct {
	audience, account string
	federation        string // URLs of the two services
	credentials       string
	client            *http.Client
}

const (
	cloudPlatform = "https://www.googleapis.com/auth/cloud-platform"
	// requested lifetime of a service account's token; also assumed if Google's response has none
	lifetime      = time.Hour
	maximumAnswer = 64 << 10
)

// NewGoogleExchanger returns a GoogleExchanger. audience is a workload identity provider, for
// requests without an audience. account is the e-mail address of a service account; if it is "",
// it obtains federated tokens.
func NewGoogleExchanger(audience, account string) *GoogleExchanger {
	return &GoogleExchanger{
		audience: audience, account: account,
		federation:  "https://sts.googleapis.com/v1/token",
		credentials: "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/",
		client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
			// A redirect would send the token to another server.
			return errors.New("unexpected redirect")
		}},
	}
}

// exchange exchanges a token. An error of type *Error is for the client; any other error means that
// the service is unavailable. It may be called concurrently.
func (g *GoogleExchanger) exchange(ctx context.Context, request Request) (Token, error) {
	audience := cmp.Or(request.Audience, g.audience)
	if audience == "" {
		return Token{}, &Error{InvalidTarget, "audience is missing; send one or set [sts] audience"}
	}
	scope := cmp.Or(request.Scope, cloudPlatform)
	federatedScope := scope
	if g.account != "" {
		federatedScope = cloudPlatform // the scope that iamcredentials requires
	}
	form := url.Values{"grant_type": {grantType}, "audience": {audience},
		"scope": {federatedScope}, "requested_token_type": {typeAccess},
		"subject_token": {request.SubjectToken}, "subject_token_type": {request.SubjectTokenType}}
	var federated struct {
		Access  string `json:"access_token"`
		Expires int64  `json:"expires_in"`
	}
	err := g.post(ctx, g.federation, "", formType, form.Encode(), request.SubjectToken, &federated)
	if err != nil {
		return Token{}, fmt.Errorf("cannot get a federated token: %w", err)
	}
	if federated.Access == "" {
		return Token{}, errors.New("cannot get a federated token: Google's response has none")
	}
	if g.account == "" {
		valid := cmp.Or(time.Duration(federated.Expires)*time.Second, lifetime)
		return Token{federated.Access, time.Now().Add(valid)}, nil
	}
	return g.impersonate(ctx, federated.Access, scope)
}

// impersonate exchanges a federated token for an access token of the service account.
func (g *GoogleExchanger) impersonate(ctx context.Context, federated, scope string) (Token, error) {
	body, err := json.Marshal(map[string]any{"scope": strings.Fields(scope),
		"lifetime": fmt.Sprintf("%ds", int(lifetime.Seconds()))})
	if err != nil {
		return Token{}, fmt.Errorf("encode the request for an access token: %w", err)
	}
	var access struct {
		Token  string    `json:"accessToken"`
		Expiry time.Time `json:"expireTime"`
	}
	address := g.credentials + url.PathEscape(g.account) + ":generateAccessToken"
	err = g.post(ctx, address, federated, "application/json", string(body), federated, &access)
	switch {
	case err != nil:
		return Token{}, fmt.Errorf("cannot get an access token of %s: %w", g.account, err)
	case access.Token == "":
		return Token{}, fmt.Errorf("cannot get an access token of %s: Google's response has none",
			g.account)
	case access.Expiry.IsZero():
		access.Expiry = time.Now().Add(lifetime)
	}
	return Token{access.Token, access.Expiry}, nil
}

// post sends a request and decodes the JSON response. If Google refuses the request, the error is
// an *Error with Google's description, from which secret is removed.
func (g *GoogleExchanger) post(
	ctx context.Context, address, bearer, contentType, body, secret string, into any,
) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address,
		strings.NewReader(body))
	if err != nil {
		return fmt.Errorf("prepare the request: %w", err)
	}
	request.Header.Set("Content-Type", contentType)
	if bearer != "" {
		request.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := g.client.Do(request)
	if err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maximumAnswer))
	if err != nil {
		return fmt.Errorf("read Google's response: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return refused(response.StatusCode, bytes.ReplaceAll(data, []byte(secret),
			[]byte("[redacted]")))
	}
	// The error of Unmarshal may quote a token.
	if json.Unmarshal(data, into) != nil {
		return errors.New("Google's response is not the expected JSON")
	}
	return nil
}

// refused returns the error for a response with a status other than 200. It is an *Error if the
// request is at fault, not if the service is unavailable.
func refused(status int, body []byte) error {
	var oauth struct { // response of sts.googleapis.com
		Code        string `json:"error"`
		Description string `json:"error_description"`
	}
	var api struct { // response of iamcredentials.googleapis.com
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"error"`
	}
	code, description := "invalid_grant", ""
	if json.Unmarshal(body, &oauth) == nil && oauth.Code != "" {
		code, description = oauth.Code, oauth.Description
	} else if json.Unmarshal(body, &api) == nil {
		description = strings.TrimSpace(api.Error.Status + " " + api.Error.Message)
	}
	description = fmt.Sprintf("Google responds with %d %.300q", status, description)
	if status >= 500 || status == http.StatusTooManyRequests {
		return errors.New(description)
	}
	return &Error{code, description}
}
